# The part of shop.py that the page on Sidekiq needs.
module Shop
  def self.send_mail(user, template)
    if user == 7 && first_mail?
      note('refused 7')
      raise IOError, 'the mail server refuses the first mail'
    end
    note("mail #{user} #{template}")
  end

  def self.first_mail?
    File.open("#{ENV.fetch('SHOP_DIARY')}-begun", File::WRONLY | File::CREAT | File::EXCL).close
    true
  rescue Errno::EEXIST
    false
  end

  def self.note(line)
    File.open(ENV.fetch('SHOP_DIARY'), 'a') { |diary| diary.write("#{line}\n") }
  end
end

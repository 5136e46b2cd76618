# Sidekiq: ten threads a process, its default. Run once for each worker process; as a program it puts jobs:
#   sidekiq_app.rb backlog FIRST COUNT | paced COUNT GAP | rate one|many COUNT
require 'json'
require 'sidekiq'

Sidekiq.configure_server do |config|
  config.redis = { url: ENV.fetch('BENCH_URL') }
  config.logger.level = Logger::WARN
end
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch('BENCH_URL') } }

MARKS = File.open(ENV.fetch('BENCH_MARKS'), 'ab')

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

class Mark
  include Sidekiq::Worker

  def perform(number)
    MARKS.syswrite([now, Process.pid, number].pack('EQ<Q<'))
  end
end

def put_all(values)
  values.each_slice(1000) do |slice| # as many as its documentation advises
    Sidekiq::Client.push_bulk('class' => Mark, 'args' => slice.map { |value| [value] })
  end
end

def rate(how, count)
  data = { 'to' => 'ada@example.org' }
  put = ->(jobs) { how == 'many' ? put_all([data] * jobs) : jobs.times { Mark.perform_async(data) } }
  put.call(20)
  began, spent_s = now, Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  put.call(count)
  puts JSON.generate([now - began, Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - spent_s])
end

def paced(count, gap_s)
  next_at = now
  moments = count.times.map do |number|
    sleep([next_at - now, 0].max)
    moment = now
    next_at = moment + gap_s
    Mark.perform_async(number)
    moment
  end
  puts JSON.generate(moments)
end

if $PROGRAM_NAME == __FILE__
  what, *arguments = ARGV
  case what
  when 'backlog' then put_all((arguments[0].to_i...(arguments[0].to_i + arguments[1].to_i)).to_a)
  when 'paced' then paced(arguments[0].to_i, arguments[1].to_f)
  when 'rate' then rate(arguments[0], arguments[1].to_i)
  end
end

# Sidekiq: ten threads a process, its default. Run once for each worker process; as a program it puts jobs:
#   sidekiq_app.rb backlog FIRST COUNT | paced COUNT GAP
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

def backlog(first, count)
  (first...(first + count)).each_slice(500) do |numbers|
    Sidekiq::Client.push_bulk('class' => Mark, 'args' => numbers.map { |number| [number] })
  end
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
  what == 'backlog' ? backlog(*arguments.map(&:to_i)) : paced(arguments[0].to_i, arguments[1].to_f)
end

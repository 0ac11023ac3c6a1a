#include "core/foresight/making.h"

#include <signal.h>
#include <unistd.h>

#include <system_error>
#include <utility>

namespace coop {

namespace {

// Signals are for the program's threads.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Making::Making(ScheduleTask task, bool in_background) : task_(std::move(task)) {
  if (in_background) {
    process_ = getpid();
    const NoSignals inherited;
    try {
      thread_ = std::thread([this] { run(); });
      return;
    } catch (const std::system_error&) {
      // There are too many threads.
    }
  }
  run();
}

Making::~Making() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_relaxed);
  if (getpid() == process_) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Making::run() noexcept {
  try {
    made_ = make_schedule(task_, stop_);
  } catch (...) {
    made_ = {};  // there is no memory for it: the policy decides
  }
  is_done_.store(true, std::memory_order_release);
}

}  // namespace coop

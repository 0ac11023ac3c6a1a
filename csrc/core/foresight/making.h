// A schedule that is being made: at once, or on a thread of its own while training goes on. The
// thread has copies of all that it looks at, holds no lock, and stops soon when nobody waits for it
// any more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <thread>

#include "core/foresight/schedule_maker.h"

namespace coop {

class Making {
 public:
  Making(ScheduleTask task, bool in_background);
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  const ScheduleTask& task() const { return task_; }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // When it is done, once.
  MadeSchedule take() { return std::move(made_); }

 private:
  void run() noexcept;

  const ScheduleTask task_;
  MadeSchedule made_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> is_done_{false};
  std::thread thread_;
  pid_t process_ = 0;  // that the thread is of: a fork has none
};

}  // namespace coop

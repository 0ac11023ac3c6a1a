#include "adapter/call/interrupts.h"

#include <signal.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

namespace coop {

namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal's handler writes it");
std::atomic<int> num_main_passes = 0;
std::atomic<int> num_other_passes = 0;
struct sigaction before;

void handle(int signal, siginfo_t* info, void* context) {
  interrupted = true;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    before.sa_handler(signal);
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

}  // namespace

void watch_interrupts() {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) != 0 || is_ours(now)) return;
  const bool is_function =
      (now.sa_flags & SA_SIGINFO) != 0 || (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
  if (!is_function) return;
  before = now;
  now.sa_flags |= SA_SIGINFO;
  now.sa_sigaction = handle;
  sigaction(SIGINT, &now, nullptr);
}

// Whoever has replaced ours meanwhile stays.
void stop_watching_interrupts() {
  struct sigaction now{};
  if (sigaction(SIGINT, nullptr, &now) == 0 && is_ours(now)) sigaction(SIGINT, &before, nullptr);
}

void begin_pass(bool on_main_thread) {
  if (!on_main_thread) {
    ++num_other_passes;
  } else {
    interrupted = false;
    ++num_main_passes;
  }
}

void end_pass(bool on_main_thread) { --(on_main_thread ? num_main_passes : num_other_passes); }

bool is_pass_interrupted() {
  return interrupted && num_main_passes > 0 && num_other_passes == 0 &&
         torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace coop

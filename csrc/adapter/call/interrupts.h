// Note [Interrupts of a pass]
// While the main thread is in a backward pass, Python's handlers cannot run: it waits in C++ for
// the threads that autograd runs the operators of GPUs on (and passes inside of passes, from a
// depth of 60). Whoever replays there has to know that SIGINT has come, so a handler of ours goes
// before the one that Python has installed, and counts. Then the replay raises KeyboardInterrupt,
// which ends the pass as any error does, and the main thread's own handler runs as soon as it is
// back in Python (interrupts.py): once, and nothing else is raised.
//
// That is only right where the handler would raise KeyboardInterrupt in any case, which is so for
// Python's own (`signal.default_int_handler`). A program's own handler runs when the pass is over.
#pragma once

namespace coop {

// SIGINT is counted from now on, besides what else it does; does nothing where it is ignored.
void watch_interrupts();
void stop_watching_interrupts();

// Around a pass that is not inside of another one.
void begin_pass(bool on_main_thread);
void end_pass(bool on_main_thread);

// Whether SIGINT has come since the main thread has begun its pass, and what this thread runs can
// only be of that one.
bool is_pass_interrupted();

}  // namespace coop

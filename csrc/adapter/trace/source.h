// Which line of the user's program asked for an operator. Looked up only while something records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coop {

struct SourceLine {
  std::string file;
  std::string function;
  int32_t line = 0;
  bool backward = false;  // the line is that of the forward operator whose gradient is computed
};

// The line, by its number in sources(); 0 is a line that is not known. Takes the GIL: call it
// without a lock. It is the innermost line outside of torch and coop. Autograd's own operators get
// the line of the operator they belong to, as far as that one was asked for after start_sources().
uint16_t current_source();
// To be called by the thread that trains, before the first operator that is to be looked up.
void start_sources();
// One of the lines; may be called under a lock.
SourceLine source(uint16_t number);
// All lines so far, by number. After start_sources(); may be called under a lock.
std::vector<SourceLine> sources();

}  // namespace coop

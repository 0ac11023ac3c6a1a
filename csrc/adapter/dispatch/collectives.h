// The collectives of torch.distributed: what each of them writes.
//
// Their schemas mark nothing as written, and a collective may still run when it has returned: it is
// done when the Work that it gives back says so (call/in_flight.h). It is never replayed (Rule 19).
#pragma once

#include <string>

namespace coop {

struct Collective {
  bool writes_first;  // all of its first argument; the others are only read. Else it only reads
  bool is_several;    // of gloo, each with a Work of its own: see InFlight
};

// By name without overload; null: not one that we know.
const Collective* find_collective(const std::string& base);

}  // namespace coop

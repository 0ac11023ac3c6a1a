// What the engine knows of an operator, worked out once from its schema and the tables of
// op_info.cc.
//
// Note [Not understood]
// Custom operators that nobody vouched for (Rule 9) may write all that they are given, and go on
// after they have returned. Their arguments become roots, what was made from them is protected
// first, and what could still leave or move is kept for good: whoever goes on using memory keeps
// its storage alive, as without a budget. Collectives that we know (collectives.h) hold what they
// use until they are done (call/in_flight.h). _c10d_functional, fsdp and _dtensor are made of
// operators that come by themselves, and pass through.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adapter/dispatch/collectives.h"

namespace coop {

enum class ArgumentKind : uint8_t { kOther, kTensor, kTensorList, kOpaque };

// How the roofline counts an operator's floating-point operations.
enum class FlopFormula : uint8_t {
  kNone,
  kMm,
  kAddmm,
  kBmm,
  kBaddbmm,
  kConvolution,
  kConvolutionBackward,
  kAttention,
  kAttentionBackward,
  kRnn,
  kRegion,
};

struct OpInfo {
  int32_t id = 0;
  std::string name;  // aten::add_.Tensor

  // Touches no bytes, or is made of operators that come by themselves: redispatched as it is.
  bool passes_through = false;
  // Why a replay is refused; null when it is allowed (Rule 9). `warns` when the user can do
  // something about it.
  const char* refusal = nullptr;
  bool warns = false;
  // Rule 9: it may write all that it is given, and go on after it has returned. `writes` says so.
  bool unknown = false;
  // Its first argument is written, or nothing, until its Work is done; null: it is none that we
  // know (then it is unknown).
  const Collective* collective = nullptr;
  bool undefined = false;  // its results are any memory, for somebody to write
  bool seeded = false;     // draws from a generator (Rule 8)
  // It takes no generator, and draws by operators that do; on the CPU.
  bool draws_inside = false;
  bool region = false;     // a compiled graph (regions/region.h): it may draw or not
  bool builtin = false;    // torch's own: it runs no Python
  bool expensive = false;  // matrix products, convolutions, attention: the left side
  bool products = true;    // it may multiply matrices, whose precision is a setting
  bool has_fresh_outputs = false;
  bool accumulates = false;     // what AccumulateGrad calls (Rule 11)
  bool shares_memory = false;   // gives the memory of its inputs another owner
  bool takes_storages = false;  // not tensors over them
  bool separable = false;       // its lists may be given to it in slices (separable.h)
  bool copies = false;          // its first argument, as it is or as another type
  FlopFormula flops = FlopFormula::kNone;
  double region_flops = 0;  // of the operators inside of a compiled graph; below 0: not known
  double region_bytes = 0;  // that they move, besides its inputs and results

  size_t num_results = 0;
  std::vector<ArgumentKind> arguments;
  std::vector<bool> writes;  // by argument, from the schema or from the table of hidden writes
  bool has_writes = false;
  bool overwrites = false;         // what it writes, it does not read
  bool writes_statistics = false;  // Rule 7: what it writes, its results do not depend on
  int training_argument = -1;      // it does so only when this one is true
  int dropout_argument = -1;       // replay is refused when this one is not zero
  int scale_argument = -1;         // gradients are written only where this one is given
  int generator_argument = -1;
  std::optional<c10::OperatorHandle> maker;  // to be run in its place (tuple_out.h)
  // Its library is gone, and another operator may have its handle by now.
  mutable std::atomic<bool> deregistered{false};
};

const OpInfo& op_info(const c10::OperatorHandle& op);
// By OpInfo::id.
const OpInfo& op_info(int32_t id);
int32_t num_op_infos();
// One that no schema tells of. `fill` is given an empty one, with its id.
const OpInfo& add_op_info(c10::function_ref<void(OpInfo&)> fill);

// For a fork.
void lock_op_infos();
void unlock_op_infos();

// Custom operators the user vouches for: deterministic, and writing only what their schema says.
// False: it is a collective, which is never replayed (Rule 19).
bool allow_replay(const std::string& name);

}  // namespace coop

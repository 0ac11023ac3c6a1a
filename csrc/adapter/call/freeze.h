// Making the recipe of an operator that ran.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "adapter/call/call.h"
#include "adapter/call/frozen_call.h"

namespace coop {

class Engine;

// Fills in call.inputs. Under the lock.
FrozenCall* freeze(Engine& engine, Call& call, const c10::OperatorHandle& op,
                   c10::DispatchKeySet keys, const Invocation& invocation, RngState rng);

}  // namespace coop

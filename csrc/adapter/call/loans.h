// Content that stays where it is in its engine's arena for as long as somebody uses it who is not
// one of that engine's operators: an operator of another device, or one above our dispatch key.
//
// Note [Several GPUs]
// Each has an engine, and engines know nothing of each other. An operator is its first GPU tensor's
// engine's. What it uses of another GPU is a loan: brought back and locked there until the operator
// ends, a root if it is written, never a recipe's input. No lock of one engine is held while
// another one is asked.
#pragma once

#include <vector>

#include "core/engine/operation.h"

namespace coop {

class Engine;

// Given back when this ends.
class Loans {
 public:
  Loans() = default;
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;
  // What `owner` lends has to be begun on it.
  Operation& add(Engine& owner) { return all_.emplace_back(&owner, Operation()).operation; }

 private:
  struct Loan {
    Engine* owner;
    Operation operation;
  };
  std::vector<Loan> all_;
};

}  // namespace coop

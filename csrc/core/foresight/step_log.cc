#include "core/foresight/step_log.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"

namespace coop {

void StepLog::begin() {
  program_ = {};
  program_.base = space_.held();
  values_.clear();
  running_ = {};
  mark_ = 0;
  first_item_ = 0;
  allocated_ = most_allocated_ = 0;
}

void StepLog::end() {
  program_.items.resize(first_item_);
  values_.resize(first_item_);
}

Value* StepLog::value_of(int32_t item) const {
  const Reference& reference = values_[item];
  Value* value = graph_.value(reference.id);
  return value->serial == reference.serial ? value : nullptr;
}

void StepLog::add(Value* value) {
  value->item = num_items();
  StepProgram::Item& item = program_.items.emplace_back();
  item.bytes = space_.has(value) ? value->bytes : 0;
  item.born = position();
  values_.push_back({value->id, value->serial});
}

void StepLog::allocated(Value* value) {
  add(value);
  allocated_ += program_.items.back().bytes;
  most_allocated_ = std::max(most_allocated_, allocated_);
}

void StepLog::ended(Value* value) {
  const int32_t index = item_of(value);
  if (index < 0) {
    // A root may die first, and be destroyed when no recipe reads it any more.
    if (value->step >= journal_.step || !space_.has(value) || value->item == kEnded) return;
    value->item = kEnded;
    program_.older_deaths.push_back({position(), num_items(), value->bytes});
    return;
  }
  StepProgram::Item& item = program_.items[index];
  if (item.end != StepProgram::kNever) return;
  item.end = position();
  item.freed = num_items();
  if (item.born == position()) allocated_ -= item.bytes;
}

void StepLog::overwritten(Value* value, Value* next) {
  add(next);
  const int32_t index = item_of(value);
  ended(value);
  if (index < 0) return;
  program_.items[index].overwritten = true;
  program_.items.back().takes = index;
}

void StepLog::fixed(const Value* value) {
  const int32_t item = item_of(value);
  if (item >= 0) program_.items[item].fixed = std::min(program_.items[item].fixed, position());
}

void StepLog::ran(const Recipe* recipe, const std::vector<Value*>& used, Cost cost) {
  running_ = {};
  running_.cost = cost;
  running_.first_use = static_cast<int32_t>(program_.uses.size());
  running_.first_source = static_cast<int32_t>(program_.sources.size());
  mark_ = extended(extended(mark_, journal_.origin.op), used.size());
  for (const Value* value : used) {
    const int32_t item = item_of(value);
    mark_ = extended(mark_, item < 0 ? ~static_cast<uint64_t>(value->bytes) : item);
    if (item >= 0) program_.uses.push_back(item);
  }
  if (recipe == nullptr) return;
  for (const Edge& edge : recipe->inputs) {
    const int32_t item = item_of(edge.value);
    if (item >= 0) program_.sources.push_back(item);
  }
}

void StepLog::made(Value* value, const Recipe* recipe) {
  if (item_of(value) < 0) add(value);
  StepProgram::Item& item = program_.items[value->item];
  if (recipe != nullptr && value->recipe == recipe) {
    item.maker = position();
    item.in_backward = value->made_in_backward;
  }
  mark_ = extended(mark_, static_cast<uint64_t>(item.bytes));
  running_.temporary -= item.bytes;
}

uint64_t StepLog::end_operator() {
  running_.temporary = std::max<Bytes>(running_.temporary + most_allocated_, 0);
  running_.first_item = std::exchange(first_item_, num_items());
  allocated_ = most_allocated_ = 0;
  program_.operators.push_back(running_);
  return mark_;
}

void StepLog::take_back() {
  while (!program_.items.empty() && program_.items.back().born == position() &&
         program_.items.back().end == position()) {
    program_.items.pop_back();
    values_.pop_back();
  }
  allocated_ = most_allocated_ = 0;
}

}  // namespace coop

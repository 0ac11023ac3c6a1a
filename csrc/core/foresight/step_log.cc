#include "core/foresight/step_log.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"

namespace coop {

void StepLog::begin() {
  program_ = {};
  program_.base = space_.held();
  values_.clear();
  roots_.clear();
  root_numbers_.clear();
  running_ = {};
  mark_ = 0;
  first_item_ = 0;
  allocated_ = most_allocated_ = 0;
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
    if (item >= 0) {
      program_.uses.push_back(item);
    } else if (has_roots_ && root_of(value) < 0) {
      program_.uses.push_back(root_of(value));
    }
  }
  if (recipe == nullptr) return;
  for (const Edge& edge : recipe->inputs) {
    const int32_t item = item_of(edge.value);
    if (item >= 0) {
      program_.sources.push_back(item);
    } else if (has_roots_ && root_of(edge.value) < 0) {
      program_.sources.push_back(root_of(edge.value));
    }
  }
}

// 0: none that may leave.
int32_t StepLog::root_of(const Value* value) {
  if (!value->is_root() || !value->can_be_saved() || !space_.has(value)) return 0;
  const auto next = -1 - static_cast<int32_t>(roots_.size());
  const auto [number, is_new] = root_numbers_.emplace(value->serial, next);
  if (is_new) roots_.push_back({value->id, value->serial});
  return number->second;
}

void StepLog::wrote(const Value* value) {
  if (!has_roots_ || item_of(value) >= 0) return;
  const int32_t root = root_of(value);
  if (root < 0) program_.root_writes.push_back({position(), root});
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

void StepLog::end() {
  if (first_item_ == num_items()) return;
  running_ = {};
  running_.first_use = static_cast<int32_t>(program_.uses.size());
  running_.first_source = static_cast<int32_t>(program_.sources.size());
  end_operator();
}

StepProgram StepLog::program_with_roots(std::vector<KnownRoot>* roots) const {
  StepProgram program = program_;
  roots->clear();
  if (!has_roots_) return program;
  std::vector<int32_t> items;  // by number; -1: it is none after all
  program.base = space_.held();
  for (const Reference& reference : roots_) {
    const Value* value = graph_.value(reference.id);
    const bool stays = value->serial == reference.serial && value->is_root() &&
                       value->can_be_saved() && value->is_attached() && !value->is_kept();
    items.push_back(stays ? program.num_items() : -1);
    if (!stays) continue;
    if (value->is_resident()) program.base -= value->bytes;
    roots->push_back({reference.id, reference.serial, value->offset});
    StepProgram::Item& item = program.items.emplace_back();
    item.bytes = value->bytes;
    item.born = -1;
    ++program.num_roots;
  }
  auto item_of = [&](int32_t number) { return number < 0 ? items[-1 - number] : number; };
  // Lists by operator become shorter.
  auto renumber = [&](std::vector<int32_t>& list, int32_t StepProgram::Operator::* first) {
    std::vector<int32_t> result;
    size_t next = 0;
    for (int32_t op = 0; op < program.size(); ++op) {
      const size_t end = op + 1 < program.size() ? program.operators[op + 1].*first : list.size();
      program.operators[op].*first = static_cast<int32_t>(result.size());
      for (; next < end; ++next) {
        if (item_of(list[next]) >= 0) result.push_back(item_of(list[next]));
      }
    }
    list = std::move(result);
  };
  renumber(program.uses, &StepProgram::Operator::first_use);
  renumber(program.sources, &StepProgram::Operator::first_source);
  std::erase_if(program.root_writes, [&](StepProgram::RootWrite& write) {
    write.item = item_of(write.item);
    return write.item < 0;
  });
  return program;
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

#include "core/simulate/repeat.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace coop {

namespace {

// Entries [begin, end) of a trace, with the storages that they define, in order.
struct Step {
  size_t begin;
  size_t end;
  std::vector<int64_t> made;
  std::unordered_map<int64_t, size_t> number;  // of those storages, in `made`
};

void add(Step& step, int64_t storage) {
  step.number.emplace(storage, step.made.size());
  step.made.push_back(storage);
}

Step read_step(const Trace& trace, size_t begin, size_t end) {
  Step step{begin, end, {}, {}};
  for (size_t i = begin; i < end; ++i) {
    const Entry& entry = trace.entries[i];
    if (entry.kind == EntryKind::kRoot || entry.kind == EntryKind::kExternal) {
      add(step, entry.storage);
    } else if (entry.kind == EntryKind::kOperator) {
      const OperatorEntry& op = trace.operators[entry.operator_index];
      for (const int64_t storage : op.outputs) add(step, storage);
      for (const auto& [storage, bytes] : op.roots) add(step, storage);
    }
  }
  return step;
}

// Whether both steps made a storage at the same point, or neither did.
bool is_same(const Step& a, int64_t x, const Step& b, int64_t y) {
  const auto in_a = a.number.find(x);
  const auto in_b = b.number.find(y);
  if (in_a == a.number.end() || in_b == b.number.end()) {
    return in_a == a.number.end() && in_b == b.number.end();
  }
  return in_a->second == in_b->second;
}

bool is_same(const Step& a, const std::vector<int64_t>& x, const Step& b,
             const std::vector<int64_t>& y) {
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!is_same(a, x[i], b, y[i])) return false;
  }
  return true;
}

bool is_same(const Trace& trace, const Step& a, const Step& b) {
  if (a.end - a.begin != b.end - b.begin || a.made.size() != b.made.size()) return false;
  for (size_t i = 0; i < a.end - a.begin; ++i) {
    const Entry& x = trace.entries[a.begin + i];
    const Entry& y = trace.entries[b.begin + i];
    if (x.kind != y.kind || x.bytes != y.bytes) return false;
    if (x.kind != EntryKind::kOperator) {
      if (!is_same(a, x.storage, b, y.storage)) return false;
      continue;
    }
    const OperatorEntry& p = trace.operators[x.operator_index];
    const OperatorEntry& q = trace.operators[y.operator_index];
    if (p.op != q.op || p.output_bytes != q.output_bytes || !is_same(a, p.inputs, b, q.inputs) ||
        !is_same(a, p.writes, b, q.writes) || !is_same(a, p.overwrites, b, q.overwrites)) {
      return false;
    }
  }
  return true;
}

// What the step frees, it or the step before has made; else it does not go on like that.
bool frees_its_own(const Trace& trace, const Step& before, const Step& last) {
  return std::all_of(trace.entries.begin() + last.begin, trace.entries.begin() + last.end,
                     [&](const Entry& entry) {
                       return entry.kind != EntryKind::kFree ||
                              before.number.contains(entry.storage) ||
                              last.number.contains(entry.storage);
                     });
}

}  // namespace

Repeated repeat_last_step(const Trace& trace, int64_t num_steps) {
  Repeated result{trace, std::vector<size_t>(trace.entries.size())};
  std::iota(result.origins.begin(), result.origins.end(), 0);
  Trace& longer = result.trace;
  std::vector<size_t> ends;  // of steps, in the entries
  for (size_t i = 0; i < trace.entries.size(); ++i) {
    if (trace.entries[i].kind == EntryKind::kEndStep) ends.push_back(i + 1);
  }
  const auto found = static_cast<int64_t>(ends.size());
  if (found < 3 || found >= num_steps) return result;
  const Step before = read_step(trace, ends[found - 3], ends[found - 2]);
  const Step last = read_step(trace, ends[found - 2], ends[found - 1]);
  if (!is_same(trace, before, last) || !frees_its_own(trace, before, last)) return result;

  // What comes after the last step is not a step.
  longer.entries.resize(last.end);
  result.origins.resize(last.end);
  int64_t next_storage = 0;
  for (const auto& entry : trace.entries) next_storage = std::max(next_storage, entry.storage + 1);
  for (const auto& op : trace.operators) {
    for (const int64_t storage : op.outputs) next_storage = std::max(next_storage, storage + 1);
    for (const auto& root : op.roots) next_storage = std::max(next_storage, root.first + 1);
  }
  std::vector<int64_t> earlier = last.made;
  for (int64_t step = found; step < num_steps; ++step) {
    std::vector<int64_t> made(last.made.size());
    for (int64_t& storage : made) storage = next_storage++;
    auto rename = [&](int64_t& storage) {
      if (const auto own = last.number.find(storage); own != last.number.end()) {
        storage = made[own->second];
      } else if (const auto old = before.number.find(storage); old != before.number.end()) {
        storage = earlier[old->second];
      }
    };
    for (size_t i = last.begin; i < last.end; ++i) {
      Entry entry = trace.entries[i];
      if (entry.kind == EntryKind::kOperator) {
        OperatorEntry op = trace.operators[entry.operator_index];
        for (auto* list : {&op.inputs, &op.outputs, &op.writes, &op.overwrites}) {
          std::for_each(list->begin(), list->end(), rename);
        }
        for (auto& root : op.roots) rename(root.first);
        entry.operator_index = static_cast<int32_t>(longer.operators.size());
        longer.operators.push_back(std::move(op));
      } else {
        rename(entry.storage);
      }
      longer.entries.push_back(entry);
      result.origins.push_back(i);
    }
    earlier = std::move(made);
  }
  return result;
}

}  // namespace coop

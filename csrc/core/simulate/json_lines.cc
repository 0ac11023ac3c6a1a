#include "core/simulate/json_lines.h"

#include <charconv>

namespace coop {

void JsonLines::number(int64_t value) {
  char digits[24];
  text_.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

void JsonLines::quoted(const std::string& value) {
  text_ += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') text_ += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) text_ += c;
  }
  text_ += '"';
}

void JsonLines::key(const char* name) {
  text_ += text_.back() == '{' ? "\"" : ",\"";
  text_ += name;
  text_ += "\":";
}

void JsonLines::list(const char* name, const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return;
  key(name);
  for (size_t i = 0; i < numbers.size(); ++i) {
    text_ += i == 0 ? '[' : ',';
    number(numbers[i]);
  }
  text_ += ']';
}

void JsonLines::add(const Entry& entry) {
  text_ += '{';
  switch (entry.kind) {
    case EntryKind::kBeginStep:
    case EntryKind::kEndStep:
    case EntryKind::kEndStepInside: {
      const std::string name = name_of(entry.kind);
      const size_t space = name.find(' ');
      key(name.substr(0, space).c_str());
      quoted(name.substr(space + 1));
      break;
    }
    case EntryKind::kRoot:
    case EntryKind::kExternal:
      key(name_of(entry.kind));
      number(entry.storage);
      key("bytes");
      number(entry.bytes - header_bytes_);
      break;
    default:
      key(name_of(entry.kind));
      number(entry.storage);
  }
  text_ += "}\n";
}

void JsonLines::add(const OperatorEntry& entry, const std::string& name,
                    const std::string& source) {
  text_ += '{';
  key(name_of(EntryKind::kOperator));
  quoted(name);
  key("cost_ns");
  number(static_cast<int64_t>(entry.cost));
  if (entry.flops > 0) {
    key("flops");
    number(static_cast<int64_t>(entry.flops));
  }
  key("moved_bytes");
  number(static_cast<int64_t>(entry.moved_bytes));
  if (entry.half) text_ += ",\"half\":true";
  if (!entry.backward) text_ += ",\"backward\":false";
  list("inputs", entry.inputs);
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    text_ += i == 0 ? ",\"outputs\":[[" : ",[";
    number(entry.outputs[i]);
    text_ += ',';
    number(entry.output_bytes[i] - header_bytes_);
    text_ += ']';
  }
  if (!entry.outputs.empty()) text_ += ']';
  list("writes", entry.writes);
  list("overwrites", entry.overwrites);
  memory(entry);
  if (entry.side == Side::kLeft) text_ += ",\"side\":\"left\"";
  if (!entry.replayable) text_ += ",\"replayable\":false";
  if (entry.undefined) text_ += ",\"undefined\":true";
  made_roots(entry);
  if (entry.keep_old != entry.usually_keeps_old()) {
    text_ += entry.keep_old ? ",\"keep_old\":true" : ",\"keep_old\":false";
  }
  if (!source.empty()) {
    key("source");
    quoted(source);
  }
  text_ += "}\n";
}

void JsonLines::memory(const OperatorEntry& entry) {
  if (entry.memory.empty()) return;
  key("memory");
  bool is_first = true;
  for (const MemoryStep& step : entry.memory) {
    text_ += is_first ? "[[" : ",[";
    is_first = false;
    quoted(name_of(step.kind));
    text_ += ',';
    switch (step.kind) {
      case MemoryStep::Kind::kOutput:
      case MemoryStep::Kind::kFree:
        number(step.argument);
        break;
      case MemoryStep::Kind::kTemporary:
        number(step.argument - header_bytes_);
        break;
      case MemoryStep::Kind::kRoot: {
        const auto& [storage, bytes] = entry.roots[static_cast<size_t>(step.argument)];
        number(storage);
        text_ += ',';
        number(bytes - header_bytes_);
        break;
      }
    }
    text_ += ']';
  }
  text_ += ']';
}

void JsonLines::made_roots(const OperatorEntry& entry) {
  if (entry.make_roots.empty()) return;
  if (entry.make_roots.size() == entry.writes.size() + entry.overwrites.size()) {
    text_ += ",\"make_roots\":true";
    return;
  }
  std::vector<int64_t> storages;
  for (const int32_t index : entry.make_roots) {
    const auto i = static_cast<size_t>(index);
    const bool read = i < entry.writes.size();
    storages.push_back(read ? entry.writes[i] : entry.overwrites[i - entry.writes.size()]);
  }
  list("make_roots", storages);
}

}  // namespace coop

// Entries as the lines of a trace file (docs/trace-format.md); coop/trace reads them.
#pragma once

#include <string>

#include "core/simulate/entry.h"

namespace coop {

// What is as usual is left out, so the same entries are always the same bytes.
class JsonLines final : public EntrySink {
 public:
  // Sizes in a file are without what the engine puts before every block.
  explicit JsonLines(Bytes header_bytes) : header_bytes_(header_bytes) {}

  void add(const Entry& entry) override;
  void add(const OperatorEntry& entry, const std::string& name, const std::string& source) override;

  std::string take() { return std::move(text_); }

 private:
  void number(int64_t value);
  void quoted(const std::string& value);
  void key(const char* name);
  void list(const char* name, const std::vector<int64_t>& numbers);
  void memory(const OperatorEntry& entry);
  void made_roots(const OperatorEntry& entry);

  const Bytes header_bytes_;
  std::string text_;
};

}  // namespace coop

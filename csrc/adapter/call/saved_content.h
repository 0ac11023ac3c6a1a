// What brings back a value of a quiet step: its bytes, in main memory.
#pragma once

#include <cstddef>
#include <memory>

#include "core/model/value.h"

namespace coop {

struct SavedContent final : SavedBytes {
  explicit SavedContent(const Value& value);
  void save(Host& host, const Value& value) override;
  void replay(Host& host, Storage** made) override;

  std::unique_ptr<std::byte[]> saved;
};

}  // namespace coop

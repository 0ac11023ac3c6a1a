// Copies of values on a local disk: a file without a name, mapped into memory.
#pragma once

#include <memory>
#include <string>

#include "adapter/storage/host_memory.h"

namespace coop {

// In the folder; throws where no file can be made there.
std::shared_ptr<HostMemory> make_mapped_file(const std::string& folder, Bytes bytes);

}  // namespace coop

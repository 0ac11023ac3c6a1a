#include "adapter/storage/mapped_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace coop {

namespace {

// Deleted while it is open: nothing is left behind, however the process ends.
int open_unnamed(const std::string& folder) {
  std::string path = folder + "/coop-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file >= 0) unlink(path.c_str());
  return file;
}

class MappedFile final : public HostMemory {
 public:
  MappedFile(const std::string& folder, Bytes bytes) : bytes_(bytes), file_(open_unnamed(folder)) {
    TORCH_CHECK(file_ >= 0, "coop: could not make a file in ", folder, ": ", std::strerror(errno));
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) {
      const int error = errno;
      close(file_);
      TORCH_CHECK(false, "coop: could not map ", bytes, " bytes of a file in ", folder, ": ",
                  std::strerror(error));
    }
    base_ = static_cast<std::byte*>(mapped);
  }
  ~MappedFile() override {
    munmap(base_, bytes_);
    close(file_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  bool copy_out(const HostExtents& to, const std::byte* from, Bytes bytes, double) override {
    for (const HostExtent& extent : to) {
      if (!take(extent.offset + extent.bytes)) return false;
    }
    for_each_piece(to, bytes, bytes_, [&](Bytes offset, Bytes done, Bytes piece) {
      std::memcpy(base_ + offset, from + done, piece);
    });
    return true;
  }
  void copy_in(std::byte* to, const HostExtents& from, Bytes bytes, bool) override {
    for_each_piece(from, bytes, bytes_, [&](Bytes offset, Bytes done, Bytes piece) {
      std::memcpy(to + done, base_ + offset, piece);
    });
  }
  bool is_copy(const HostExtents& extents, const std::byte* content, Bytes bytes) override {
    bool same = true;
    for_each_piece(extents, bytes, bytes_, [&](Bytes offset, Bytes done, Bytes piece) {
      same &= std::memcmp(base_ + offset, content + done, piece) == 0;
    });
    return same;
  }

 private:
  // To touch a page for which the disk has no room ends the process, so room is taken before.
  bool take(Bytes end) {
    if (end <= taken_) return true;
    constexpr Bytes kPiece = 64 << 20;
    const Bytes wanted = std::min((end + kPiece - 1) / kPiece * kPiece, bytes_);
    if (posix_fallocate(file_, taken_, wanted - taken_) != 0) return refuse();
    taken_ = wanted;
    return true;
  }

  const Bytes bytes_;
  const int file_;
  std::byte* base_ = nullptr;
  Bytes taken_ = 0;  // of the disk, from the beginning
};

}  // namespace

std::shared_ptr<HostMemory> make_mapped_file(const std::string& folder, Bytes bytes) {
  return std::make_shared<MappedFile>(folder, bytes);
}

}  // namespace coop

// Why an operator gets no recipe. Arrays, since they are known by their addresses.
#pragma once

namespace coop {

inline constexpr char kOtherDevice[] = "it reads another device";
inline constexpr char kOtherStream[] = "it ran on another stream";
inline constexpr char kInput[] = "it copies an input into the arena";
inline constexpr char kForeign[] =
    "it reads memory that is not torch's own (a NumPy array, for example)";

}  // namespace coop

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accel {

/// What the header of a `.npy` file says, in versions 1 to 3 of NumPy's format: magic, version, length of the
/// header, and a dict as Python writes it, with exactly the keys descr, fortran_order and shape.
struct NpyHeader {
  std::string
      descr;  ///< The dtype as text, such as "<u2"; of a structured dtype its list as it stands there.
  bool is_fortran_order = false;
  std::vector<std::uint64_t> shape;
  std::size_t bytes = 0;  ///< Where the values begin.

  /// "(20, 100)", "(2000,)", as Python writes it.
  [[nodiscard]] std::string shape_text() const;
};

/// Reads the header of the file whose content is `file` and begins with the magic. Anything that NumPy would
/// not read either is an Error of kind kUsage that says what was found.
[[nodiscard]] NpyHeader read_npy_header(std::span<const std::byte> file);

}  // namespace accel

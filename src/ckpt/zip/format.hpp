#pragma once

#include <cstddef>
#include <cstdint>

namespace accel::ckpt::zip {

/// Numbers of the zip format that reader and writer share.
constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDescriptor = 0x08074b50;
constexpr std::uint32_t kDirectoryHeader = 0x02014b50;
constexpr std::uint32_t kZip64End = 0x06064b50;
constexpr std::uint32_t kZip64Locator = 0x07064b50;
constexpr std::uint32_t kEnd = 0x06054b50;

constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::size_t kDirectoryHeaderBytes = 46;
constexpr std::size_t kZip64EndBytes = 56;
constexpr std::size_t kZip64LocatorBytes = 20;
constexpr std::size_t kEndBytes = 22;

constexpr std::uint64_t kMax32 = 0xffffffffU;
constexpr std::uint64_t kMax16 = 0xffffU;

constexpr std::uint16_t kZip64Extra = 0x0001;
constexpr std::uint16_t kPaddingExtra = 0x4246;  // "FB"

constexpr std::uint16_t kDeflated = 8;

constexpr std::uint16_t kHasDescriptor = 0x0008;
constexpr std::uint16_t kUtf8Names = 0x0800;
/// UTF-8 names, a descriptor, and how hard a record was deflated.
constexpr std::uint64_t kKnownFlags = 0x080e;

}  // namespace accel::ckpt::zip

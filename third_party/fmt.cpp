// The part of fmt 9 that is not in its headers, for programs that contain their libraries
// (-Dself_contained=true): Debian has no static libfmt. The instantiations are those that fmt/format.h
// declares and fmt's own source file makes.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float number) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double number) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref locale) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref locale) -> char;
template FMT_API void buffer<char>::append(const char* begin, const char* end);

}  // namespace detail
FMT_END_NAMESPACE

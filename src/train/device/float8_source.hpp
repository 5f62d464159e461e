#pragma once

namespace accel::train {

/// The kernels of float8_kernels.cpp, CUDA C++ without any include, for compute capability 8.9 and later.
inline constexpr const char* kFloat8Source = R"cuda(
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct BFloat16 {
  u16 bits;
  __device__ operator float() const { return __uint_as_float((u32)bits << 16); }
};
struct Half {
  u16 bits;
  __device__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

template <class T, int count>
struct __align__(sizeof(T) * count) Several {
  T values[count];
};

// a is cast to the lower byte. The largest magnitude times its scale is the largest number, so nothing saturates.
__device__ u32 two(float a, float b, bool e5m2) {
  u16 both;
  if (e5m2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
  return both;
}

template <class T>
__device__ u32 four(const T* from, float scale, bool e5m2) {
  const Several<T, 4> in = *(const Several<T, 4>*)from;
  return two((float)in.values[0] * scale, (float)in.values[1] * scale, e5m2) |
         two((float)in.values[2] * scale, (float)in.values[3] * scale, e5m2) << 16;
}
__device__ u32 four(const u8* from, float, bool) { return *(const u32*)from; }

// Without their sign floats are ordered as their bits are, and NaN is above infinity.
template <class T>
__device__ void largest(const T* values, u64 numel, u32* result) {
  const int count = 16 / sizeof(T);
  u32 best = 0;
  const u64 step = (u64)gridDim.x * blockDim.x * count;
  for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * count; i < numel; i += step) {
    const Several<T, count> in = *(const Several<T, count>*)(values + i);
    for (int j = 0; j < count; ++j) best = max(best, __float_as_uint((float)in.values[j]) & 0x7fffffffu);
  }
  __shared__ u32 of_warps[32];
  best = __reduce_max_sync(0xffffffffu, best);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = __reduce_max_sync(0xffffffffu, threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) atomicMax(result, best);
}

// This is float8_scale(), whose division is a reciprocal and a product.
__device__ float scale_of(u32 amax, bool e5m2) {
  double value = __uint_as_float(amax);
  if (value < 1e-12) value = 1e-12;
  return (float)((e5m2 ? 57344.0 : 448.0) * (1.0 / value));
}

// A block of 256 threads casts 64 rows of 128 columns. A thread has 4 rows of 4 columns at a time.
template <class T>
__device__ void cast(const T* values, u32 rows, u32 columns, u32 padded_rows, const u32* amax, bool e5m2, u8* by_row,
                     u8* by_column, float* own_scale) {
  __shared__ u32 tile[128][17];  // Four rows of a column in each.
  float scale = 1;
  if (amax) {
    scale = scale_of(*amax, e5m2);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *own_scale = scale;
  }
  const u32 lane = threadIdx.x % 32;
  const u32 column = blockIdx.x * 128 + lane * 4;
  for (u32 group = threadIdx.x / 32; group < 16; group += 8) {
    const u32 first = blockIdx.y * 64 + group * 4;
    u32 in[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = 0;
      if (first + i >= rows || column >= columns) continue;
      const u64 at = (u64)(first + i) * columns + column;
      in[i] = four(values + at, scale, e5m2);
      if (by_row) *(u32*)(by_row + at) = in[i];
    }
    if (!by_column) continue;
    const u32 a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140);
    const u32 c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);
    tile[lane * 4 + 0][group] = __byte_perm(a, b, 0x5410);
    tile[lane * 4 + 1][group] = __byte_perm(a, b, 0x7632);
    tile[lane * 4 + 2][group] = __byte_perm(c, d, 0x5410);
    tile[lane * 4 + 3][group] = __byte_perm(c, d, 0x7632);
  }
  if (!by_column) return;
  __syncthreads();
  for (u32 i = threadIdx.x; i < 128 * 16; i += 256) {
    const u32 to = blockIdx.x * 128 + i / 16, row = blockIdx.y * 64 + i % 16 * 4;
    if (to < columns && row < padded_rows) *(u32*)(by_column + (u64)to * padded_rows + row) = tile[i / 16][i % 16];
  }
}

// Values may begin at any element.
template <class T>
__device__ void cast_flat(const T* values, u64 numel, const float* given, bool e5m2, u8* result) {
  const float scale = *given;
  const bool is_aligned = (u64)values % (4 * sizeof(T)) == 0 && (u64)result % 4 == 0;
  const u64 whole = is_aligned ? numel / 4 * 4 : 0;
  const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x, threads = (u64)gridDim.x * blockDim.x;
  for (u64 i = thread * 4; i < whole; i += threads * 4) *(u32*)(result + i) = four(values + i, scale, e5m2);
  for (u64 i = whole + thread; i < numel; i += threads) result[i] = (u8)two((float)values[i] * scale, 0, e5m2);
}

#define KERNELS(name, T)                                                                                          \
  extern "C" __global__ void largest_##name(const T* values, u64 numel, u32* result) {                            \
    largest(values, numel, result);                                                                               \
  }                                                                                                               \
  extern "C" __global__ void cast_##name(const T* values, u32 rows, u32 columns, u32 padded_rows,                 \
                                         const u32* amax, bool e5m2, u8* by_row, u8* by_column, float* scale) {  \
    cast(values, rows, columns, padded_rows, amax, e5m2, by_row, by_column, scale);                               \
  }                                                                                                               \
  extern "C" __global__ void flat_##name(const T* values, u64 numel, const float* given, bool e5m2, u8* result) { \
    cast_flat(values, numel, given, e5m2, result);                                                                \
  }

KERNELS(float32, float)
KERNELS(float16, Half)
KERNELS(bfloat16, BFloat16)
extern "C" __global__ void transpose(const u8* values, u32 rows, u32 columns, u32 padded_rows, u8* by_column) {
  cast(values, rows, columns, padded_rows, nullptr, false, nullptr, by_column, nullptr);
}
)cuda";

}  // namespace accel::train

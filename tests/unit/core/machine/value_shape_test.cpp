#include "core/machine/value_shape.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "core/machine/value_words.hpp"

namespace accel::machine {
namespace {

TEST(ValueShapeTest, ShowsWhatHasTheShape) {
  for (const auto& [shape, value] : {
           std::pair(Shape::kPlain, ""),
           std::pair(Shape::kPlain, "-1"),
           std::pair(Shape::kPlain, "0x1F"),
           std::pair(Shape::kPlain, "1e-4"),
           std::pair(Shape::kPlain, "True"),
           std::pair(Shape::kPlain, "INIT,NET"),
           std::pair(Shape::kPlain, "^LL128"),
           std::pair(Shape::kPlain, "max-autotune"),
           std::pair(Shape::kPlain, "8(x2),4"),
           std::pair(Shape::kPlain, "0-3 8-11"),
           std::pair(Shape::kPlain, ":4096:8"),
           std::pair(Shape::kPlain, "granularity=fine,compact,1,0"),
           std::pair(Shape::kPlain, "expandable_segments:True,max_split_size_mb:128"),
           std::pair(Shape::kPlain, "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1099511627776"),
           std::pair(Shape::kDevices, "0,1"),
           std::pair(Shape::kDevices, "0-3"),
           std::pair(Shape::kDevices, "all"),
           std::pair(Shape::kDevices, "GPU-8f3c2f0a-1111-2222-3333-444455556666,MIG-8f3c2f0a"),
           std::pair(Shape::kInterfaces, "eth0"),
           std::pair(Shape::kInterfaces, "^lo,docker"),
           std::pair(Shape::kInterfaces, "=mlx5_0:1,mlx5_1"),
           std::pair(Shape::kInterfaces, "enp0s31f6"),
           std::pair(Shape::kHost, "node01"),
           std::pair(Shape::kHost, "ip-10-0-1-23.ec2.internal:29500"),
           std::pair(Shape::kHost, "10.0.0.1"),
           std::pair(Shape::kHost, "fe80::1"),
           std::pair(Shape::kHost, "[fe80::1]:29500"),
           std::pair(Shape::kHosts, "node[01-03,7],login"),
           std::pair(Shape::kPath, "/"),
           std::pair(Shape::kPath, "/opt/miniconda3/envs/py311/lib/python3.11/site-packages"),
           std::pair(Shape::kPath, "../libexec/accel-worker"),
           std::pair(Shape::kPath, "/root/.cache/venv-92217cdf52c8/bin/python3"),
           std::pair(Shape::kPath, "/tmp/nccl.%h.%p.log"),
           std::pair(Shape::kPaths, "/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu"),
           std::pair(Shape::kClasses, "LlamaDecoderLayer,T5Block"),
       })
    EXPECT_EQ(shown(value, shape), value);
}

TEST(ValueShapeTest, ShowsNothingElse) {
  for (const auto& [shape, value] : {
           std::pair(Shape::kPlain, "hunter2"),
           std::pair(Shape::kPlain, "INFO\nGPUs 8"),
           std::pair(Shape::kPlain, "4711471147114711"),
           std::pair(Shape::kPlain, "token=1"),
           std::pair(Shape::kPlain, ","),
           std::pair(Shape::kDevices, "GPU-8f3c2f0a1111222233334444"),
           std::pair(Shape::kDevices, "GPU-"),
           std::pair(Shape::kDevices, "1234567890"),
           std::pair(Shape::kInterfaces, "hunter2"),
           std::pair(Shape::kInterfaces, "eth0deadbeefdeadbeef"),
           std::pair(Shape::kHost, "me:word@host"),
           std::pair(Shape::kHost, "https://host/path"),
           std::pair(Shape::kHost, "host:port"),
           std::pair(Shape::kHost, "host:"),
           std::pair(Shape::kHost, "AKIAIOSFODNN7EXAMPLE"),
           std::pair(Shape::kHost, "0123456789abcdef0123456789abcdef"),
           std::pair(Shape::kHosts, "node[01-03] --token"),
           std::pair(Shape::kPath, "hunter2"),
           std::pair(Shape::kPath, "/a/hf_abcdefghijklmnopqrst/"),
           std::pair(Shape::kPath, "/a/b?token=abc"),
           std::pair(Shape::kPath, "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
           std::pair(Shape::kPath, "/a/\x1b[31m"),
           std::pair(Shape::kPath, "/a/x8f3c2f0a-1111-2222-3333-4444deadbeefx"),
           std::pair(Shape::kHost, "8f3c2f0a-1111-2222-3333-4444deadbeef"),
           std::pair(Shape::kClasses, "hf_abcdefghijklmnopqrst"),
           std::pair(Shape::kClasses, "AKIAIOSFODNN7EXAMPLE"),
       })
    EXPECT_EQ(shown(value, shape), kNotShown) << value;
  EXPECT_EQ(shown("/a:/b?sig=1:/c", Shape::kPaths), "/a:(set, not shown):/c");
}

TEST(ValueShapeTest, KnowsWordsInAnyCase) {
  EXPECT_TRUE(is_value_word("info") && is_value_word("Info") && is_value_word("FULL_SHARD"));
  EXPECT_FALSE(is_value_word("") || is_value_word("inf") || is_value_word("infos") ||
               is_value_word("password"));
}

}  // namespace
}  // namespace accel::machine

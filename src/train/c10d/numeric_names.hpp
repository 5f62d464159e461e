#pragma once

namespace accel::train {

/// While one exists, getnameinfo() of this process gives addresses as numbers, on every thread, and asks no
/// DNS server. Otherwise it is the C library's.
///
/// libtorch puts the host name of every socket of its TCPStore into messages that nobody sees. For each rank
/// that connects, it asks DNS for that name, on a thread of its own in the rank that hosts the store, while
/// all the others wait, and for seconds where no server answers.
class NumericNames {
 public:
  NumericNames();
  NumericNames(const NumericNames&) = delete;
  NumericNames& operator=(const NumericNames&) = delete;
  ~NumericNames();
};

}  // namespace accel::train

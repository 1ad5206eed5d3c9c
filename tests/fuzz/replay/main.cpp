// SPDX-License-Identifier: Apache-2.0
//
// Stands in for libFuzzer where the compiler is g++: calls a fuzz target with every file of its
// corpus, then with mutations of them, in an order that is the same on every machine. It finds what
// a corpus already knows and what lies near it; searching by coverage is libFuzzer's work
// (LEAPQUANT_FUZZ). On a crash the input is left in the current folder.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kLargestInput = 1 << 16;

// <program>-crash-input; set before the first call.
std::string crash_file;

// The input of the running call, for the signal handler.
const std::uint8_t* volatile current_data = nullptr;
volatile std::size_t current_size = 0;

// Only functions that are safe in a signal handler.
void leave_input(int signal_number) {
  const int file = open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0) {
    const bool written = write(file, current_data, current_size) >= 0;
    close(file);
    constexpr char kSentence[] = "fuzz replay: crashed; see the file *-crash-input\n";
    if (written && write(STDERR_FILENO, kSentence, sizeof kSentence - 1) < 0) _exit(1);
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void call_target(const Input& input) {
  // A copy of exactly this size on the heap, so that a read past its end is caught.
  const std::size_t allocated = std::max<std::size_t>(input.size(), 1);
  auto* exact = static_cast<std::uint8_t*>(std::malloc(allocated));
  if (exact == nullptr) std::abort();
  if (!input.empty()) std::memcpy(exact, input.data(), input.size());
  current_data = exact;
  current_size = input.size();
  LLVMFuzzerTestOneInput(exact, input.size());
  std::free(exact);
}

// SplitMix64: a fixed sequence, unlike the standard distributions, on every standard library.
class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // A number below `bound`, which is at least 1.
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_;
};

// One small change: what format readers trip over is lengths, signs, and cuts.
void mutate(Input& input, const std::vector<Input>& corpus, Sequence& sequence) {
  constexpr std::uint8_t kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '[', '}', ','};
  const std::size_t at = input.empty() ? 0 : sequence.below(input.size());
  const auto position = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (sequence.below(8)) {
    case 0:
      if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1u << sequence.below(8));
      break;
    case 1:
      if (!input.empty()) input[at] = kTelling[sequence.below(std::size(kTelling))];
      break;
    case 2:
      input.resize(at);
      break;
    case 3: {
      Input inserted(1 + sequence.below(16));
      for (auto& byte : inserted) byte = static_cast<std::uint8_t>(sequence.next());
      input.insert(position, inserted.begin(), inserted.end());
      break;
    }
    case 4: {
      const std::size_t count = std::min(input.size() - at, 1 + sequence.below(32));
      input.erase(position, position + static_cast<std::ptrdiff_t>(count));
      break;
    }
    case 5: {
      const std::size_t count = std::min(input.size() - at, 1 + sequence.below(64));
      const Input copied(position, position + static_cast<std::ptrdiff_t>(count));
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), copied.begin(), copied.end());
      break;
    }
    case 6: {  // The head of this input, the tail of another one.
      const Input& other = corpus[sequence.below(corpus.size())];
      const std::size_t from = other.empty() ? 0 : sequence.below(other.size());
      input.resize(at);
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      break;
    }
    default: {  // A little-endian number moved by a little or made huge.
      const std::size_t width = std::size_t{1} << sequence.below(4);
      if (input.size() < width) break;
      const std::size_t start = sequence.below(input.size() - width + 1);
      std::uint64_t value = 0;
      std::memcpy(&value, input.data() + start, width);
      value = sequence.below(2) == 0 ? value + sequence.below(33) - 16 : ~std::uint64_t{0} >> 1;
      std::memcpy(input.data() + start, &value, width);
      break;
    }
  }
  if (input.size() > kLargestInput) input.resize(kLargestInput);
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "fuzz replay: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return Input(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The files of a folder in the order of their names, or the one file that was named.
std::vector<Input> read_corpus(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  } else {
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

}  // namespace

int main(int argc, char** argv) {
  crash_file = std::filesystem::path(argv[0]).filename().string() + "-crash-input";
  double seconds = 0;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::strtod(argv[++i], nullptr);
    } else {
      for (auto& input : read_corpus(argv[i])) corpus.push_back(std::move(input));
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr,
                 "usage: %s [--seconds S] <file or folder>...\n"
                 "fuzz replay: there is no input to start from\n",
                 argv[0]);
    return 2;
  }
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal_number, leave_input);
  }

  for (const Input& input : corpus) call_target(input);

  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  Sequence sequence(1);
  std::uint64_t mutations = 0;
  while (Clock::now() < end) {
    Input input = corpus[sequence.below(corpus.size())];
    for (std::size_t steps = 1 + sequence.below(4); steps > 0; --steps) {
      mutate(input, corpus, sequence);
    }
    call_target(input);
    ++mutations;
  }
  std::printf("fuzz replay: %zu inputs of the corpus and %llu mutations passed\n", corpus.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The session file. All numbers are little-endian; sections begin at multiples of 16 with zeros
// between them:
//   header (128 bytes), section table (32 bytes each), then the sections in the order of the table:
//   state text, tokens (int32), convolution states, KV cache, one blob per linear layer.
// A section's entry holds offset, bytes, XXH3-64 of its bytes, and zero. The header's checksum
// covers header (with that field zero) and table.
#include "runtime/session.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "runtime/error.h"
#include "runtime/output_file.h"

namespace leapquant::runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "sessions are written as they lie");

constexpr std::array<char, 8> kMagic = {'L', 'Q', 'S', 'E', 'S', 'S', '\r', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kAlignment = 16;
constexpr std::uint32_t kMaxLayers = 65536;

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t num_sections;
  std::uint64_t file_bytes;
  std::uint64_t checksum;
  std::uint64_t fingerprint;
  std::uint64_t position;
  std::uint64_t num_tokens;
  std::uint64_t prompt_tokens;
  std::uint64_t draws;
  std::uint32_t linear_layers;
  std::uint32_t convolution_inputs;
  std::uint32_t convolution_channels;
  std::uint32_t full_layers;
  std::uint32_t kv_heads;
  std::uint32_t head_dim;
  std::uint32_t kv_type;
  std::uint32_t reserved[7];
};
static_assert(sizeof(Header) == 128);

struct Section {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t checksum;
  std::uint64_t reserved;
};
static_assert(sizeof(Section) == 32);

enum : std::size_t { kState = 0, kTokens = 1, kConvolution = 2, kKv = 3, kFirstBlob = 4 };

std::uint64_t align(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t header_checksum(Header header, std::span<const Section> table) {
  header.checksum = 0;
  const std::uint64_t first = XXH3_64bits(&header, sizeof(header));
  return XXH3_64bits_withSeed(table.data(), table.size_bytes(), first);
}

[[noreturn]] void refuse(std::string_view label, const std::string& reason) {
  throw Error(fmt::format("{} is no sound session: {}.", in_quotes(label), reason));
}

// The header, with every number within the limits of later arithmetic.
Header read_header(std::span<const std::byte> bytes, std::string_view label) {
  if (bytes.size() < sizeof(Header)) {
    refuse(label, fmt::format("it has {} bytes, fewer than the {} of a header", bytes.size(),
                              sizeof(Header)));
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) refuse(label, "it does not begin as sessions do");
  if (header.version != kVersion) {
    refuse(label, fmt::format("it has version {}, and this program reads version {}; save it again "
                              "with the program that wrote it",
                              header.version, kVersion));
  }
  if (header.file_bytes != bytes.size()) {
    refuse(label,
           fmt::format("it has {} bytes, but {} were written", bytes.size(), header.file_bytes));
  }
  if (header.linear_layers > kMaxLayers || header.full_layers > kMaxLayers ||
      header.num_sections != kFirstBlob + header.linear_layers ||
      header.num_sections > (bytes.size() - sizeof(Header)) / sizeof(Section)) {
    refuse(label, fmt::format("{} linear layers and {} sections do not go together",
                              header.linear_layers, header.num_sections));
  }
  return header;
}

// Checks that the sections fill the file behind the table in order, and their checksums.
std::vector<std::span<const std::byte>> read_sections(std::span<const std::byte> bytes,
                                                      const Header& header,
                                                      std::string_view label) {
  std::vector<Section> table(header.num_sections);
  std::memcpy(table.data(), bytes.data() + sizeof(Header), table.size() * sizeof(Section));
  if (header.checksum != header_checksum(header, table)) {
    refuse(label, "its header has changed since it was written");
  }
  for (const std::uint32_t word : header.reserved) {
    if (word != 0) refuse(label, "a reserved field is not zero");
  }
  std::vector<std::span<const std::byte>> sections;
  std::uint64_t end = sizeof(Header) + table.size() * sizeof(Section);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Section& section = table[i];
    const std::uint64_t begin = align(end);
    if (section.offset != begin || begin > bytes.size() || section.bytes > bytes.size() - begin ||
        section.reserved != 0) {
      refuse(label, fmt::format("section {} does not lie where it must", i));
    }
    for (std::uint64_t at = end; at < begin; ++at) {
      if (bytes[at] != std::byte{0}) refuse(label, "there are bytes between its sections");
    }
    const auto content = bytes.subspan(begin, section.bytes);
    if (XXH3_64bits(content.data(), content.size()) != section.checksum) {
      refuse(label, fmt::format("section {} has changed since it was written", i));
    }
    sections.push_back(content);
    end = begin + section.bytes;
  }
  if (end != bytes.size()) refuse(label, "there are bytes behind its last section");
  return sections;
}

// a * b * c <= limit without overflow, and equal to it.
bool product_is(std::uint64_t limit, std::initializer_list<std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (factor != 0 && product > std::numeric_limits<std::uint64_t>::max() / factor) return false;
    product *= factor;
  }
  return product == limit;
}

void check_sizes(const Header& header, std::span<const std::span<const std::byte>> sections,
                 std::string_view label) {
  constexpr std::uint64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
  if (header.num_tokens > kMostTokens || header.position > header.num_tokens ||
      header.prompt_tokens > header.num_tokens) {
    refuse(label, "its numbers of tokens contradict each other");
  }
  if (header.kv_type > 1) refuse(label, "its KV type is not known");
  constexpr std::uint32_t kMost = 1u << 24;
  if (std::max({header.convolution_inputs, header.convolution_channels, header.kv_heads,
                header.head_dim}) > kMost) {
    refuse(label, "its shapes are beyond all models");
  }
  const auto element =
      static_cast<std::uint64_t>(kv_type_bytes(static_cast<KvType>(header.kv_type)));
  if (!product_is(sections[kTokens].size(), {header.num_tokens, sizeof(std::int32_t)}) ||
      !product_is(sections[kConvolution].size(), {header.linear_layers, header.convolution_inputs,
                                                  header.convolution_channels, sizeof(float)}) ||
      !product_is(sections[kKv].size(), {2 * element, header.full_layers, header.kv_heads,
                                         header.head_dim, header.position})) {
    refuse(label, "its sections are not as large as its shapes say");
  }
}

}  // namespace

bool begins_as_session(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

SessionContents parse_session(std::span<const std::byte> bytes, std::string_view label) {
  const Header header = read_header(bytes, label);
  const std::vector<std::span<const std::byte>> sections = read_sections(bytes, header, label);
  check_sizes(header, sections, label);
  SessionContents contents;
  contents.fingerprint = header.fingerprint;
  contents.state.assign(reinterpret_cast<const char*>(sections[kState].data()),
                        sections[kState].size());
  for (const char c : contents.state) {
    if (c < ' ' || c > '~') refuse(label, "the name of its state format is not plain text");
  }
  contents.position = static_cast<std::int64_t>(header.position);
  contents.mark.tokens.resize(header.num_tokens);
  std::memcpy(contents.mark.tokens.data(), sections[kTokens].data(), sections[kTokens].size());
  for (const TokenId token : contents.mark.tokens) {
    if (token < 0) refuse(label, "it holds a negative token");
  }
  contents.mark.prompt_tokens = static_cast<std::int64_t>(header.prompt_tokens);
  contents.mark.draws = header.draws;
  contents.convolution_inputs = static_cast<std::int32_t>(header.convolution_inputs);
  contents.convolution_channels = static_cast<std::int32_t>(header.convolution_channels);
  contents.kv_shape = {
      static_cast<std::int32_t>(header.full_layers), static_cast<std::int32_t>(header.kv_heads),
      static_cast<std::int32_t>(header.head_dim), static_cast<KvType>(header.kv_type)};
  contents.convolution = {reinterpret_cast<const float*>(sections[kConvolution].data()),
                          sections[kConvolution].size() / sizeof(float)};
  contents.kv = sections[kKv];
  contents.blobs.assign(sections.begin() + kFirstBlob, sections.end());
  return contents;
}

SessionFile::SessionFile(const std::filesystem::path& path)
    : file_(path), contents_(parse_session(file_.bytes(), path.string())) {}

void write_session(const std::filesystem::path& path, const SessionContents& contents) {
  std::vector<std::span<const std::byte>> sections = {
      std::as_bytes(std::span(contents.state)), std::as_bytes(std::span(contents.mark.tokens)),
      std::as_bytes(contents.convolution), contents.kv};
  sections.insert(sections.end(), contents.blobs.begin(), contents.blobs.end());

  std::vector<Section> table;
  std::uint64_t end = sizeof(Header) + sections.size() * sizeof(Section);
  for (const auto& section : sections) {
    const std::uint64_t begin = align(end);
    table.push_back({begin, section.size(), XXH3_64bits(section.data(), section.size()), 0});
    end = begin + section.size();
  }
  Header header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.num_sections = static_cast<std::uint32_t>(sections.size());
  header.file_bytes = end;
  header.fingerprint = contents.fingerprint;
  header.position = static_cast<std::uint64_t>(contents.position);
  header.num_tokens = contents.mark.tokens.size();
  header.prompt_tokens = static_cast<std::uint64_t>(contents.mark.prompt_tokens);
  header.draws = contents.mark.draws;
  header.linear_layers = static_cast<std::uint32_t>(contents.blobs.size());
  header.convolution_inputs = static_cast<std::uint32_t>(contents.convolution_inputs);
  header.convolution_channels = static_cast<std::uint32_t>(contents.convolution_channels);
  header.full_layers = static_cast<std::uint32_t>(contents.kv_shape.num_layers);
  header.kv_heads = static_cast<std::uint32_t>(contents.kv_shape.num_heads);
  header.head_dim = static_cast<std::uint32_t>(contents.kv_shape.head_dim);
  header.kv_type = static_cast<std::uint32_t>(contents.kv_shape.type);
  header.checksum = header_checksum(header, table);

  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(std::span(table)));
  std::uint64_t at = sizeof(Header) + table.size() * sizeof(Section);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    constexpr std::array<std::byte, kAlignment> kZeros{};
    file.write(std::span(kZeros).first(table[i].offset - at));
    file.write(sections[i]);
    at = table[i].offset + table[i].bytes;
  }
  file.commit();
}

void save_session(const std::filesystem::path& path, const Batch& batch, SequenceId sequence,
                  const SessionMark& mark) {
  const ModelConfig& config = batch.model().config();
  const std::int64_t position = batch.position(sequence);
  if (position > static_cast<std::int64_t>(mark.tokens.size())) {
    throw Error(fmt::format("A sequence of {} tokens cannot be saved with a list of {}.", position,
                            mark.tokens.size()));
  }
  if (!batch.fault(sequence).empty()) {
    throw Error(fmt::format("The session is not saved: {}", batch.fault(sequence)));
  }
  const std::vector<std::vector<std::byte>> blobs = batch.save_state(sequence);
  const std::vector<std::byte> kv = batch.pack_kv(sequence);
  std::vector<float> convolution;
  for (std::int32_t layer = 0; layer < config.num_linear_layers(); ++layer) {
    const auto state = batch.convolution_state(sequence, layer);
    convolution.insert(convolution.end(), state.begin(), state.end());
  }
  SessionContents contents;
  contents.fingerprint = batch.model().fingerprint();
  contents.state = batch.format().text;
  contents.position = position;
  contents.mark = mark;
  contents.convolution_inputs = static_cast<std::int32_t>(config.linear_conv_kernel - 1);
  contents.convolution_channels = static_cast<std::int32_t>(config.conv_dim());
  contents.kv_shape = batch.kv_shape();
  contents.convolution = convolution;
  contents.kv = kv;
  contents.blobs.assign(blobs.begin(), blobs.end());
  write_session(path, contents);
}

void require_session_fits(const SessionFile& session, const Batch& batch) {
  const SessionContents& contents = session.contents();
  const std::string name = in_quotes(session.path().string());
  const ModelConfig& config = batch.model().config();
  if (contents.fingerprint != batch.model().fingerprint()) {
    throw Error(fmt::format("The session {} was saved by another model than the one in {}.", name,
                            in_quotes(batch.model().folder().string())));
  }
  if (contents.state != batch.format().text) {
    throw Error(fmt::format(
        "The session {} keeps its state as {}, but {} was asked for; resume it without options of "
        "the state, or with --state '{}' alone, or convert it.",
        name, contents.state, batch.format().text, contents.state));
  }
  if (contents.kv_shape.type != batch.options().kv_type) {
    throw Error(fmt::format(
        "The session {} keeps its KV cache in {}, but {} was asked for; resume it without --kv.",
        name, kv_type_name(contents.kv_shape.type), kv_type_name(batch.options().kv_type)));
  }
  if (contents.kv_shape.num_layers != config.num_full_layers() ||
      contents.kv_shape.num_heads != config.num_key_value_heads ||
      contents.kv_shape.head_dim != config.head_dim ||
      static_cast<std::int64_t>(contents.blobs.size()) != config.num_linear_layers() ||
      contents.convolution_inputs != config.linear_conv_kernel - 1 ||
      contents.convolution_channels != config.conv_dim()) {
    throw Error(fmt::format("The session {} has layers of other shapes than the model.", name));
  }
  for (const TokenId token : contents.mark.tokens) {
    if (token >= config.vocab_size) {
      throw Error(fmt::format("The session {} holds token {}, but the model has {} tokens.", name,
                              token, config.vocab_size));
    }
  }
}

void restore_session(const SessionFile& session, Batch& batch, SequenceId sequence) {
  require_session_fits(session, batch);
  const SessionContents& contents = session.contents();
  batch.restore_state(sequence, contents.blobs, contents.position);
  const auto layers = static_cast<std::int32_t>(contents.blobs.size());
  const std::size_t floats = contents.convolution.size() / static_cast<std::size_t>(layers);
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    batch.restore_convolution(
        sequence, layer,
        contents.convolution.subspan(static_cast<std::size_t>(layer) * floats, floats));
  }
  batch.restore_kv(sequence, contents.kv);
}

}  // namespace leapquant::runtime

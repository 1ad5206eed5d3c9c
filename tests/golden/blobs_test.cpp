// SPDX-License-Identifier: Apache-2.0
//
// Blobs that were written once and are kept for ever: every later version must read them, decode
// them to the values beside them (which the second reader, saved_state.py, computed) and save them
// again as the same bytes. Broken blobs must be refused with the status in their name. What the
// encoder makes of a fixed state is held by its error, not by its bytes: results.csv.
//
// LEAPQUANT_GOLDEN_UPDATE=1 writes what is missing (and results.csv); it never replaces a blob.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "capi/blob.h"
#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

using Blob = std::vector<std::byte>;

const std::filesystem::path kFolder = std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "tests/golden";

bool updating() { return std::getenv("LEAPQUANT_GOLDEN_UPDATE") != nullptr; }

Blob read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Blob bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write_file(const std::filesystem::path& path, const Blob& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

struct Case {
  const char* name;
  const char* format;
  int32_t decay;
  int32_t sub_steps;
  int32_t tokens;
};

// One blob per preset, then what presets do not reach.
const Case kCases[] = {
    {"fp32", "fp32", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"bf16", "bf16", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int8", "int8", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int6", "int6", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int4", "int4", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int8_plus", "int8+", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int6_plus", "int6+", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int4_plus", "int4+", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int4_compact", "int4-compact", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"int4_step", "int4:step", LEAPQUANT_DECAY_SCALAR, 1, 21},
    {"three_bits_constant", "3h:smooth=none:scale=fp16:i8=2", LEAPQUANT_DECAY_CONSTANT, 1, 18},
    {"vector_fp16_sub_steps", "int8:decay=fp16", LEAPQUANT_DECAY_VECTOR, 2, 19},
    {"mix_staggered", "mix(int8+:stagger=1@0-1,int4-compact:stagger=1)", LEAPQUANT_DECAY_NONE, 1,
     27},
};

const float kConstants[4] = {-0.05f, -0.1f, -0.2f, -0.4f};

leapquant_shape shape_of(const Case& c) {
  leapquant_shape shape = small_shape();
  shape.head_k_dim = 20;
  shape.head_v_dim = 12;
  shape.decay = c.decay;
  shape.sub_steps = c.sub_steps;
  if (c.decay == LEAPQUANT_DECAY_CONSTANT) shape.constant_log_decay = kConstants;
  return shape;
}

// Feeds the case's tokens: activations of its own shape.
void feed(SmallLayer& layer, const Case& c) {
  const leapquant_shape& s = layer.shape;
  const auto fill = [](int32_t count, uint64_t position, uint64_t which, float low, float high) {
    std::vector<float> values;
    for (int32_t i = 0; i < count; ++i) {
      const float x = made_up(5, position, which * 100000 + static_cast<uint64_t>(i));
      values.push_back(low + (high - low) * 0.5f * (x + 1.0f));
    }
    return values;
  };
  const int32_t slot = 0;
  for (int32_t t = 0; t < c.tokens; ++t) {
    const uint64_t p = static_cast<uint64_t>(t);
    const auto q = fill(s.num_k_heads * s.head_k_dim, p, 1, -1, 1);
    const auto k = fill(s.sub_steps * s.num_k_heads * s.head_k_dim, p, 2, -1, 1);
    const auto v = fill(s.sub_steps * s.num_v_heads * s.head_v_dim, p, 3, -2, 2);
    const auto g = fill(s.num_v_heads * s.head_k_dim, p, 4, -0.3f, 0);
    const auto beta = fill(s.sub_steps * s.num_v_heads, p, 5, 0.2f, 1);
    std::vector<float> o(static_cast<size_t>(s.num_v_heads * s.head_v_dim));
    int32_t status = 0;
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = 1;
    args.tokens = 1;
    args.state_slots = &slot;
    args.positions = &t;
    args.inputs.q.data = q.data();
    args.inputs.k.data = k.data();
    args.inputs.v.data = v.data();
    args.inputs.beta.data = beta.data();
    if (c.decay >= LEAPQUANT_DECAY_SCALAR) args.inputs.log_decay.data = g.data();
    args.inputs.qk_l2norm = 1;
    args.output.data = o.data();
    args.status = &status;
    ASSERT_EQ(layer.run(args), LEAPQUANT_OK) << leapquant_last_error();
  }
}

class Golden : public ::testing::TestWithParam<Case> {};

TEST_P(Golden, DecodesToTheKeptValues) {
  const Case& c = GetParam();
  const auto path = kFolder / "blobs" / (std::string(c.name) + ".blob");
  SmallLayer layer(c.format, shape_of(c));
  if (updating() && !std::filesystem::exists(path)) {
    ASSERT_EQ(layer.reset({0}), LEAPQUANT_OK);
    feed(layer, c);
    write_file(path, layer.save(0, c.tokens, 0x1eaf));
  }
  const Blob blob = read_file(path);
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  ASSERT_EQ(leapquant_inspect(blob.data(), blob.size(), &info, nullptr, 0), LEAPQUANT_OK)
      << leapquant_last_error();
  EXPECT_EQ(info.position, c.tokens);
  int32_t position = 0;
  ASSERT_EQ(layer.load(1, blob, &position, 0x1eaf), LEAPQUANT_OK) << leapquant_last_error();

  const int32_t slot = 1;
  int32_t status = -1;
  std::vector<float> values(static_cast<size_t>(4 * 20 * 12));
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = &slot;
  args.positions = &position;
  args.matrices = values.data();
  args.status = &status;
  ASSERT_EQ(leapquant_export(layer.layout, &layer.pool, &args, &layer.launch), LEAPQUANT_OK)
      << leapquant_last_error();
  const Blob kept_bytes = read_file(kFolder / "blobs" / (std::string(c.name) + ".values"));
  ASSERT_EQ(kept_bytes.size(), values.size() * sizeof(float));
  std::vector<float> kept(values.size());
  std::memcpy(kept.data(), kept_bytes.data(), kept_bytes.size());
  float largest = 0;
  for (const float x : kept) largest = std::max(largest, std::fabs(x));
  // Each value is a sum of at most 1 + 26 compensators + 38 records, each term rounded about three
  // times in FP32 (2^-24 of a term, terms up to four times the largest value): 65 * 3 * 4 * 2^-24.
  const float tolerance = largest * 65 * 3 * 4 * 0x1p-24f;
  for (size_t i = 0; i < kept.size(); ++i) ASSERT_NEAR(values[i], kept[i], tolerance) << i;

  // Saving again gives the same bytes, but for the encoder's choices, which are this library's.
  Blob again = layer.save(1, position, 0x1eaf);
  ASSERT_EQ(again.size(), blob.size());
  const size_t states = static_cast<size_t>(layer.sizes.state_bytes);
  const auto header = leapquant::capi::header_layout(info.num_formats, 4, c.decay == 1);
  EXPECT_TRUE(std::equal(again.begin() + static_cast<std::ptrdiff_t>(header.bases), again.end(),
                         blob.begin() + static_cast<std::ptrdiff_t>(header.bases)))
      << "tables behind the formats, states and window";
  EXPECT_GT(blob.size(), header.bytes + states - 1);
}

INSTANTIATE_TEST_SUITE_P(Blobs, Golden, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- Broken blobs -------------------------------------------------------------------------------

uint8_t* at(Blob& blob, size_t offset) { return reinterpret_cast<uint8_t*>(blob.data()) + offset; }

template <typename Number>
void put(Blob& blob, size_t offset, Number number) {
  leapquant::capi::store_number(at(blob, offset), number);
}

// Makes every checksum agree with the bytes, as somebody who forges a blob would.
void seal(Blob& blob) {
  using namespace leapquant::capi;
  const size_t header = load_number<uint32_t>(at(blob, prefix::kHeaderBytes));
  const size_t states = load_number<uint64_t>(at(blob, prefix::kStatesBytes));
  put(blob, prefix::kTablesChecksum, checksum(at(blob, prefix::kBytes), header - prefix::kBytes));
  put(blob, prefix::kStatesChecksum, checksum(at(blob, header), states));
  put(blob, prefix::kWindowChecksum,
      checksum(at(blob, header + states), blob.size() - header - states));
  put(blob, prefix::kPrefixChecksum, prefix_checksum(at(blob, 0)));
}

struct Broken {
  const char* name;
  leapquant_status status;
  void (*breaks)(Blob& blob);
};

// All made from the golden int8 blob: 4 heads of [20, 12], 21 tokens, 5 of them records.
const Broken kBroken[] = {
    {"empty", LEAPQUANT_EMPTY_ENTRY, [](Blob& b) { std::fill(b.begin(), b.end(), std::byte{0}); }},
    {"no_bytes", LEAPQUANT_TRUNCATED, [](Blob& b) { b.clear(); }},
    {"only_magic", LEAPQUANT_TRUNCATED, [](Blob& b) { b.resize(8); }},
    {"half_a_prefix", LEAPQUANT_TRUNCATED, [](Blob& b) { b.resize(100); }},
    {"one_byte_short", LEAPQUANT_TRUNCATED, [](Blob& b) { b.pop_back(); }},
    {"other_magic", LEAPQUANT_BAD_MAGIC, [](Blob& b) { put<uint8_t>(b, 0, 'X'); }},
    {"later_version", LEAPQUANT_VERSION_MISMATCH,
     [](Blob& b) {
       put<uint32_t>(b, 8, 2);
       seal(b);
     }},
    {"flipped_prefix", LEAPQUANT_CHECKSUM_MISMATCH, [](Blob& b) { *at(b, 32) ^= 1; }},
    {"flipped_table", LEAPQUANT_CHECKSUM_MISMATCH, [](Blob& b) { *at(b, 200) ^= 0x80; }},
    {"flipped_state", LEAPQUANT_CHECKSUM_MISMATCH, [](Blob& b) { *at(b, 700) ^= 0x10; }},
    {"flipped_window", LEAPQUANT_CHECKSUM_MISMATCH, [](Blob& b) { *at(b, b.size() - 20) ^= 4; }},
    {"no_heads", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 92, 0);
       seal(b);
     }},
    {"huge_heads", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 92, 1 << 30);
       put<uint64_t>(b, 56, 0);
       put(b, 56, leapquant::capi::prefix_checksum(at(b, 0)));
     }},
    {"sizes_that_wrap", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint64_t>(b, 40, ~uint64_t{0} - 100);
       put(b, 56, leapquant::capi::prefix_checksum(at(b, 0)));
     }},
    {"nine_formats", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 124, 9);
       seal(b);
     }},
    {"odd_payload", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 128, 5);
       seal(b);
     }},
    {"format_padding", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 128 + 60, 1);
       seal(b);
     }},
    {"base_above_position", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 192, 22);
       seal(b);
     }},
    {"negative_base", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 192, -5);
       seal(b);
     }},
    {"records_disagree", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int32_t>(b, 36, 6);
       seal(b);
     }},
    {"unknown_health", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint32_t>(b, 208 + 12, 16);
       seal(b);
     }},
    {"head_of_no_format", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint8_t>(b, 208 + 64, 1);
       seal(b);
     }},
    {"header_padding", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint8_t>(b, 208 + 64 + 4, 7);
       seal(b);
     }},
    {"code_out_of_range", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<int8_t>(b, 288, -128);
       seal(b);
     }},
    {"scale_is_nan", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<float>(b, 288 + 240, NAN);
       seal(b);
     }},
    {"scale_is_negative", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<float>(b, 288 + 240, -1.0f);
       seal(b);
     }},
    {"smoothing_is_infinite", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<float>(b, 288 + 288, INFINITY);
       seal(b);
     }},
    {"compensator_is_infinite", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint16_t>(b, 288 + 368, 0x7c00);
       seal(b);
     }},
    {"key_is_nan", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<uint16_t>(b, 288 + 4 * 624, 0x7e01);
       seal(b);
     }},
    {"decay_grows", LEAPQUANT_CORRUPT,
     [](Blob& b) {
       put<float>(b, b.size() - 80, 0.5f);
       seal(b);
     }},
};

TEST(BrokenBlobs, AreRefusedWithTheirStatus) {
  SmallLayer layer("int8", shape_of(kCases[2]));
  ASSERT_EQ(layer.sizes.state_bytes, 4 * 624) << "the offsets above count on this";
  ASSERT_EQ(layer.reset({0, 1}), LEAPQUANT_OK);
  const auto before = layer.snapshot();
  for (const Broken& broken : kBroken) {
    const auto path = kFolder / "broken" /
                      (std::string(broken.name) + "." + std::to_string(broken.status) + ".blob");
    if (updating() && !std::filesystem::exists(path)) {
      Blob made = read_file(kFolder / "blobs/int8.blob");
      broken.breaks(made);
      write_file(path, made);
    }
    Blob blob = read_file(path);
    const size_t bytes = blob.size();
    blob.reserve(1);  // a pointer even where there are no bytes
    int32_t position = -1;
    EXPECT_EQ(
        leapquant_load(layer.layout, &layer.pool, 1, 1, 0x1eaf, blob.data(), bytes, &position),
        broken.status)
        << broken.name << ": " << leapquant_last_error();
    leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
    EXPECT_EQ(leapquant_inspect(blob.data(), bytes, &info, nullptr, 0), broken.status)
        << broken.name;
    EXPECT_EQ(position, -1);
  }
  EXPECT_EQ(layer.snapshot(), before);
}

// ---- The encoder --------------------------------------------------------------------------------

// Relative error of encoding one fixed state, head 0: a number that shows in review when the fit or
// the codec change for better or worse. 5 % covers what a different summation order does (last bits
// of FP16 compensators, a few codes at ties); an algorithm that changes moves it more.
TEST(Encoder, ErrorsAreThoseOfResultsCsv) {
  const auto path = kFolder / "results.csv";
  std::ostringstream table;
  table << "format,fold_error\n";
  std::vector<std::pair<std::string, double>> measured;
  for (const char* format : {"bf16", "int8", "int6", "int4", "int8+", "int6+", "int4+",
                             "int4-compact", "8", "6", "4", "3", "4h", "3h", "8:smooth=none"}) {
    leapquant_shape shape = small_shape();
    shape.head_k_dim = 64;
    shape.head_v_dim = 64;
    SmallLayer layer(format, shape);
    std::vector<float> state(static_cast<size_t>(4 * 64 * 64));
    for (size_t i = 0; i < state.size(); ++i) {
      const uint64_t row = i / 64 % 64;
      const uint64_t column = i % 64;
      // Three directions that stand out, over noise with a few loud rows.
      float x = made_up(1, row, column) * (row % 16 == 3 ? 4.0f : 0.5f);
      for (uint64_t r = 0; r < 3; ++r) {
        x += 8.0f / static_cast<float>(r + 1) * made_up(2, row, r) * made_up(3, column, r);
      }
      state[i] = x;
    }
    const int32_t slot = 0;
    const int32_t position = 0;
    int32_t status = -1;
    leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
    args.batch = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.matrices = state.data();
    args.status = &status;
    ASSERT_EQ(leapquant_import(layer.layout, &layer.pool, &args, &layer.launch), LEAPQUANT_OK)
        << leapquant_last_error();
    measured.emplace_back(format, layer.health[0].fold_error);
    table << format << ',' << layer.health[0].fold_error << '\n';
  }
  if (updating()) std::ofstream(path) << table.str();
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  for (const auto& [format, error] : measured) {
    std::getline(file, line);
    ASSERT_EQ(line.substr(0, line.find(',')), format);
    const double kept = std::stod(line.substr(line.find(',') + 1));
    EXPECT_NEAR(error, kept, 0.05 * kept) << format;
  }
}

}  // namespace
}  // namespace leapquant_test

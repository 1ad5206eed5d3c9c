// SPDX-License-Identifier: Apache-2.0
//
// leapquant bench: speed of decoding from a large pool of states, and of generating with a model,
// against what this machine's memory and arithmetic allow in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "lab/evaluation.h"
#include "lab/machine_speed.h"
#include "lab/parallel.h"
#include "lab/pool_decode.h"
#include "runtime/error.h"
#include "runtime/progress.h"
#include "runtime/threads.h"
#include "tool/bench_generate.h"
#include "tool/bench_model.h"
#include "tool/byte_size.h"
#include "tool/console.h"
#include "tool/interrupt.h"
#include "tool/option_checks.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

struct BenchArguments {
  std::string state =
      "fp32:step,bf16:step,bf16:window=16:stagger=1,int8:stagger=1,int6:stagger=1,int4:stagger=1,"
      "int8+:stagger=1,int6+:stagger=1,int4+:stagger=1,int4-compact:stagger=1";
  std::int32_t k_heads = 16;
  std::int32_t v_heads = 32;
  std::string pool;
  std::vector<std::int32_t> threads;
  std::int32_t rounds = 3;
  bool json = false;
  bool quiet = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// What the machine did in the rounds of one thread count.
struct Rates {
  std::vector<double> read, copy, scale, multiply_add;
};

struct BenchRow {
  std::string state;
  std::string policy;
  int threads = 0;
  int sequences = 0;
  double seconds = 0;  // per token of one sequence
  double bytes = 0;    // per token of one sequence
  double gb_per_s = 0;
  double copy_share = 0;
  double floor_share = 0;
  double speedup = 0;
};

double floor_seconds(const lab::PoolDecode& pool, const Rates& rates) {
  const lab::DecodeWork& work = pool.work();
  if (pool.format().policy == LEAPQUANT_PER_STEP) return work.bytes / median(rates.scale);
  return work.bytes / median(rates.read) + work.multiply_adds / median(rates.multiply_add);
}

class Bench {
 public:
  explicit Bench(const BenchArguments& arguments) : arguments_(arguments) {
    if (arguments.v_heads % arguments.k_heads != 0) {
      throw UsageError(fmt::format("--v-heads {} is no multiple of --k-heads {}.",
                                   arguments.v_heads, arguments.k_heads));
    }
    shape_ = {arguments.k_heads, arguments.v_heads, 128, 128};
    pool_bytes_ = arguments.pool.empty() ? 4 * lab::last_level_cache_bytes()
                                         : parse_byte_size(arguments.pool, "--pool");
    refuse_repeated_numbers("--threads", arguments.threads);
    thread_counts_ = arguments.threads;
    if (thread_counts_.empty()) {
      thread_counts_ = {1};
      if (lab::available_cores() > 1) thread_counts_.push_back(lab::available_cores());
    }
    for (const std::string& entry : split_states(arguments.state)) {
      runtime::StateOptions options;
      options.state = entry;
      try {
        formats_.push_back(runtime::resolve_state(options, arguments.v_heads));
      } catch (const runtime::Error& error) {
        throw UsageError(error.what());
      }
    }
    refuse_repeated_states(formats_);
    require_sequences();
    require_memory();
  }

  void run() {
    end_at_once_when_interrupted();
    const int most = *std::max_element(thread_counts_.begin(), thread_counts_.end());
    for (const auto& format : formats_) {
      pools_.push_back(std::make_unique<lab::PoolDecode>(shape_, format, pool_bytes_, most));
    }
    describe();
    std::vector<BenchRow> rows;
    for (const int threads : thread_counts_) run_threads(threads, rows);
    if (!arguments_.json) print_table(rows);
  }

 private:
  // A pool below one sequence would be none.
  void require_sequences() const {
    for (const auto& format : formats_) {
      const std::int64_t bytes = lab::PoolDecode::memory_bytes(shape_, format, 1);
      if (pool_bytes_ >= bytes) continue;
      throw UsageError(fmt::format("--pool {} is less than one sequence in the format {}, {}.",
                                   show_byte_size(pool_bytes_), format.text,
                                   show_byte_size(bytes)));
    }
  }

  void require_memory() const {
    const std::int64_t available = lab::available_memory_bytes();
    // Beyond this sums would overflow; no machine has it.
    const std::int64_t pool = std::min(pool_bytes_, std::int64_t{1} << 50);
    std::int64_t needed = 2 * pool;
    for (const auto& format : formats_) {
      needed += lab::PoolDecode::memory_bytes(shape_, format, pool);
    }
    if (available > 0 ? needed > available / 10 * 9 : pool != pool_bytes_) {
      const bool one = formats_.size() == 1;
      throw runtime::Error(fmt::format(
          "{} {} of memory, but {} is available; give {}a smaller --pool.",
          one ? "The pool needs" : fmt::format("The pools of {} formats need", formats_.size()),
          show_byte_size(needed), show_byte_size(available),
          one ? "" : "fewer formats with --state or "));
    }
  }

  void describe() const {
    if (arguments_.json) return;
    print(
        fmt::format("Decode of one token of every sequence in a pool: {} key heads, {} value heads "
                    "128 x 128 on {};\n{} of states per format ({} of last-level cache), slots in "
                    "random order, median of {} windows.\n",
                    shape_.num_k_heads, shape_.num_v_heads, pools_.front()->backend(),
                    show_byte_size(pool_bytes_), show_byte_size(lab::last_level_cache_bytes()),
                    arguments_.rounds));
  }

  void run_threads(int threads, std::vector<BenchRow>& rows) {
    const runtime::Threads workers(threads);
    lab::MachineSpeed machine(pool_bytes_, workers.runner());
    Rates rates;
    std::vector<std::vector<double>> seconds(pools_.size());
    const std::int64_t steps =
        static_cast<std::int64_t>(arguments_.rounds + 1) * static_cast<std::int64_t>(pools_.size());
    runtime::Progress progress(fmt::format("bench, {} thread{}", threads, threads == 1 ? "" : "s"),
                               steps, arguments_.quiet);
    std::int64_t step = 0;
    // The first round fills windows and pages and does not count. Formats take turns, so that a
    // slow minute of the machine meets them all.
    for (int round = 0; round <= arguments_.rounds; ++round) {
      for (std::size_t i = 0; i < pools_.size(); ++i) {
        const double read = machine.read_rate();
        const double copy = machine.copy_rate();
        const double scale = machine.scale_rate();
        const double multiply_add = machine.multiply_add_rate();
        const double window = pools_[i]->run_window(workers.runner());
        progress.update(++step, formats_[i].text);
        if (round == 0) continue;
        rates.read.push_back(read);
        rates.copy.push_back(copy);
        rates.scale.push_back(scale);
        rates.multiply_add.push_back(multiply_add);
        seconds[i].push_back(window);
      }
    }
    report(threads, rates, seconds, rows);
  }

  void report(int threads, const Rates& rates, const std::vector<std::vector<double>>& seconds,
              std::vector<BenchRow>& rows) {
    std::optional<double> reference;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (formats_[i].per_step() && formats_[i].is_fp32()) {
        reference = median(seconds[i]) / pools_[i]->sequences();
      }
    }
    if (!arguments_.json) {
      print(fmt::format(
          "\n{} thread{}: read {:.2f} GB/s, copy {:.2f} GB/s, best in-place scaling "
          "{:.2f} GB/s, {:.1f} G multiply-adds/s\n",
          threads, threads == 1 ? "" : "s", median(rates.read) / 1e9, median(rates.copy) / 1e9,
          median(rates.scale) / 1e9, median(rates.multiply_add) / 1e9));
    }
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const lab::PoolDecode& pool = *pools_[i];
      BenchRow row;
      row.state = name_of(formats_[i]);
      row.policy = lab::policy_name(formats_[i]);
      row.threads = threads;
      row.sequences = pool.sequences();
      row.seconds = median(seconds[i]) / pool.sequences();
      row.bytes = pool.work().bytes;
      row.gb_per_s = row.bytes / row.seconds / 1e9;
      row.copy_share = row.gb_per_s * 1e9 / median(rates.copy);
      row.floor_share = floor_seconds(pool, rates) / row.seconds;
      row.speedup = reference ? *reference / row.seconds : 0;
      rows.push_back(row);
      if (arguments_.json) print_row(row, pool, rates);
    }
    flush_output();
  }

  // Stagger and window are the benchmark's, not the reader's concern.
  static std::string name_of(const runtime::StateFormat& format) {
    std::string name = lab::state_name(format);
    for (const std::string_view part : {":stagger=1", ":window=16"}) {
      if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
    }
    return name;
  }

  void print_row(const BenchRow& row, const lab::PoolDecode& pool, const Rates& rates) const {
    nlohmann::ordered_json line;
    line["state"] = row.state;
    line["policy"] = row.policy;
    line["threads"] = row.threads;
    line["gb_per_s"] = row.gb_per_s;
    line["copy_share"] = row.copy_share;
    line["floor_share"] = row.floor_share;
    line["speedup"] = row.speedup;
    line["tokens_per_second"] = 1 / row.seconds;
    line["bytes_per_token"] = row.bytes;
    line["fold_multiply_adds_per_token"] = pool.work().multiply_adds;
    line["memory_floor_seconds"] =
        row.bytes / median(row.policy == "step" ? rates.scale : rates.read);
    line["arithmetic_floor_seconds"] =
        row.policy == "step" ? 0.0 : pool.work().multiply_adds / median(rates.multiply_add);
    line["seconds_per_token"] = row.seconds;
    line["sequences"] = row.sequences;
    line["backend"] = pool.backend();
    line["machine"] = {{"read_gb_per_s", median(rates.read) / 1e9},
                       {"copy_gb_per_s", median(rates.copy) / 1e9},
                       {"scale_gb_per_s", median(rates.scale) / 1e9},
                       {"multiply_adds_per_s", median(rates.multiply_add)}};
    print_json(line);
  }

  void print_table(const std::vector<BenchRow>& rows) const {
    Table table({"state", "policy", ">threads", ">sequences", ">KB/token", ">us/token", ">GB/s",
                 ">of copy", ">of floor", ">tokens/s", ">speed-up"});
    for (const BenchRow& row : rows) {
      table.add({row.state, row.policy, std::to_string(row.threads), std::to_string(row.sequences),
                 fmt::format("{:.0f}", row.bytes / 1e3), fmt::format("{:.1f}", row.seconds * 1e6),
                 fmt::format("{:.2f}", row.gb_per_s), fmt::format("{:.0f} %", 100 * row.copy_share),
                 fmt::format("{:.0f} %", 100 * row.floor_share),
                 fmt::format("{:.0f}", 1 / row.seconds),
                 row.speedup > 0 ? fmt::format("{:.2f}x", row.speedup) : std::string("-")});
    }
    print("\n" + table.text());
    print(
        "\nFloor, step: best in-place scaling of the same bytes. Floor, window: bytes at the read "
        "rate\n"
        "plus the fold's multiply-adds at the measured rate. Speed-up: over fp32 per step.\n");
  }

  const BenchArguments& arguments_;
  lab::LayerShape shape_;
  std::int64_t pool_bytes_ = 0;
  std::vector<std::int32_t> thread_counts_;
  std::vector<runtime::StateFormat> formats_;
  std::vector<std::unique_ptr<lab::PoolDecode>> pools_;
};

}  // namespace

void add_bench(CLI::App& app, Verbs& verbs) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* verb = app.add_subcommand(
      "bench", "speed of decoding from a large pool of states; 'bench generate': of a model");
  verb->require_subcommand(0, 1);
  verb->add_option("--state", arguments->state, "formats, separated by commas")
      ->capture_default_str();
  verb->add_option("--k-heads", arguments->k_heads, "key heads")
      ->check(whole_number(1, 256))
      ->capture_default_str();
  verb->add_option("--v-heads", arguments->v_heads, "value heads")
      ->check(whole_number(1, 256))
      ->capture_default_str();
  verb->add_option("--pool", arguments->pool,
                   "bytes of states per format (default: four times the last-level cache)");
  verb->add_option("--threads", arguments->threads, "thread counts (default: 1 and all cores)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(1, 1024));
  verb->add_option("--rounds", arguments->rounds, "windows per format that count")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  verb->add_flag("--json", arguments->json, "one JSON line per row");
  verb->add_flag("--quiet", arguments->quiet, "no progress on standard error");
  verb->footer("Example: leapquant bench --state fp32:step,int8:stagger=1 --threads 1");
  verbs[verb] = [arguments] { Bench(*arguments).run(); };
  add_bench_generate(*verb, verbs);
  add_bench_model(*verb, verbs);
}

}  // namespace leapquant::tool

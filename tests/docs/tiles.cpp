// SPDX-License-Identifier: Apache-2.0
// Checks the tables of tiles in the pages on the GPU kernels against the planner: tiles SM90.md SM80.md. Where a page
// differs, the table is printed as it has to be.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/plan/devices.h"
#include "gpu/plan/plan_problem.h"
#include "sm80/backward_plan.h"
#include "sm80/forward_plan.h"

namespace strobe {
namespace {

constexpr std::array<std::int64_t, 5> kHeadDims = {64, 96, 128, 192, 256};
/// A device for each amount of shared memory that a CTA can have.
constexpr std::array kSharedMemory = {std::pair{"227 KB: H100, B200", "H100"}, std::pair{"163 KB: A100", "A100"},
                                      std::pair{"99 KB: RTX 30, 40, 50, L4, L40S", "RTX 4090"}};

/// 16,384 tokens and a hidden size of 2,048, as the benchmarks have them.
AttentionProblem benchmark_problem(std::int64_t seqlen, std::int64_t head_dim, CausalMask causal) {
  AttentionProblem problem = test::problem_of(seqlen, head_dim, head_dim);
  problem.batch = 16384 / seqlen;
  problem.total_q = problem.total_k = 16384;
  problem.heads_q = problem.heads_kv = 2048 / head_dim;
  problem.causal = causal;
  return problem;
}

std::string plural(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// Rows of Q x keys per step, stages of K and V.
std::string cell_of(const sm90::forward::Config& config) {
  return fmt::format("{}x{}, {}{}", config.consumer_warpgroups * 64, config.block_n, config.stages,
                     config.ctas_per_sm == 1 ? "" : fmt::format(", {} CTAs", config.ctas_per_sm));
}

std::string sm90_table() {
  constexpr std::array<std::int64_t, 5> kLengths = {64, 512, 2048, 4096, 16384};
  std::string text = "| head_dim, mask | 64 tokens | 512 | 2,048 | 4,096 | 16,384 |\n|---|---|---|---|---|---|\n";
  for (const std::int64_t head_dim : {64, 128, 192, 256}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      text += fmt::format("| {} {} |", head_dim, causal == CausalMask::none ? "full" : "causal");
      for (const std::int64_t seqlen : kLengths) {
        text += fmt::format(" {} |", cell_of(test::config_of(benchmark_problem(seqlen, head_dim, causal))));
      }
      text += "\n";
    }
  }
  return text;
}

/// Causal calls of 4,096 tokens with one option each.
std::string sm90_option_table() {
  using Change = void (*)(AttentionProblem&);
  constexpr std::array<std::pair<std::string_view, Change>, 10> kOptions = {
      {{"window of 128 keys", [](AttentionProblem& p) { p.window.left = 127; }},
       {"window of 1,024 keys", [](AttentionProblem& p) { p.window.left = 1023; }},
       {"chunks of 2,048 keys", [](AttentionProblem& p) { p.chunk = 2048; }},
       {"softcap", [](AttentionProblem& p) { p.softcap = 30.0F; }},
       {"ALiBi", [](AttentionProblem& p) { p.modifiers.has_alibi = true; }},
       {"bias, 16 bits, aligned to 16 bytes",
        [](AttentionProblem& p) {
          p.modifiers.has_bias = p.modifiers.bias_per_head = true;
          p.modifiers.bias_dtype = DType::bfloat16;
        }},
       {"dropout", [](AttentionProblem& p) { p.dropout = 0.1F; }},
       {"block mask of 128", [](AttentionProblem& p) { p.modifiers.block_size = 128; }},
       {"block mask of 64", [](AttentionProblem& p) { p.modifiers.block_size = 64; }},
       {"pages of 16 rows", [](AttentionProblem& p) { p.page_size = 16; }}}};
  std::string text = "| option | head_dim 64 | 128 | 256 |\n|---|---|---|---|\n";
  for (const auto& [name, change] : kOptions) {
    text += fmt::format("| {} |", name);
    for (const std::int64_t head_dim : {64, 128, 256}) {
      AttentionProblem problem = benchmark_problem(4096, head_dim, CausalMask::bottom_right);
      change(problem);
      const sm90::forward::Config config = test::config_of(problem);
      text += fmt::format(" {} |", cell_of(sm90::aligned_bias_config(problem, test::kH200, config).value_or(config)));
    }
    text += "\n";
  }
  return text;
}

/// A table with a column for each amount of shared memory; `cell` describes the tiles of a row's problem on a device.
template <class Rows, class Cell>
std::string table_by_memory(std::string_view title, const Rows& rows, const Cell& cell) {
  std::string text = fmt::format("| {} |", title), rule = "\n|---|";
  for (const auto& [memory, name] : kSharedMemory) {
    text += fmt::format(" {} |", memory);
    rule += "---|";
  }
  text += rule + "\n";
  for (const auto& [name, problem] : rows) {
    text += fmt::format("| {} |", name);
    for (const auto& [memory, of] : kSharedMemory) text += fmt::format(" {} |", cell(problem, test::device_named(of)));
    text += "\n";
  }
  return text;
}

/// In 16 bits, and the head_dims that float32 is compiled for.
std::vector<std::pair<std::string, AttentionProblem>> by_head_dim(Pass pass) {
  std::vector<std::pair<std::string, AttentionProblem>> rows;
  const auto add = [&](std::int64_t head_dim, DType dtype) {
    AttentionProblem problem = benchmark_problem(4096, head_dim, CausalMask::none);
    problem.pass = pass;
    problem.dtype = dtype;
    rows.emplace_back(fmt::format("{}{}", head_dim, dtype == DType::float32 ? ", float32" : ""), problem);
  };
  for (const std::int64_t head_dim : kHeadDims) add(head_dim, DType::bfloat16);
  add(512, DType::bfloat16);
  for (const std::int64_t head_dim : {64, 128}) add(head_dim, DType::float32);
  return rows;
}

std::string sm80_forward_table() {
  return table_by_memory(
      "head_dim", by_head_dim(Pass::forward), [](const AttentionProblem& problem, const gpu::DeviceShape& shape) {
        const sm80::forward::Config config = *sm80::forward_config(problem, shape);
        return fmt::format("{}x{}, {}, {}{}", block_m(config), config.block_n,
                           plural(config.stages, sliced(config) ? "slice" : "stage"), plural(config.ctas_per_sm, "CTA"),
                           config.q_in_registers ? ", Q in registers" : "");
      });
}

/// Decodes of head_dim 128 with as many rows in a tile: queries of one head, or heads that share their keys.
std::string sm80_decode_table() {
  std::array<std::pair<std::string, AttentionProblem>, 3> rows;
  constexpr std::array kRows = {std::pair{"1 to 16", 16}, std::pair{"17 to 32", 32}, std::pair{"33 to 64", 64}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    AttentionProblem problem = test::problem_of(4096, 128, 128);
    problem.batch = 16;
    problem.seqlen_q = kRows[i].second;
    problem.total_q = problem.batch * problem.seqlen_q;
    rows[i] = {kRows[i].first, problem};
  }
  return table_by_memory("rows", rows, [](const AttentionProblem& problem, const gpu::DeviceShape& shape) {
    const sm80::forward::Config config = *sm80::forward_config(problem, shape);
    return fmt::format("{}x{}x{}, {}", config.key_groups, config.block_n, config.stages,
                       plural(config.ctas_per_sm, "CTA"));
  });
}

std::string sm80_backward_table() {
  return table_by_memory("head_dim", by_head_dim(Pass::backward),
                         [](const AttentionProblem& problem, const gpu::DeviceShape& shape) {
                           const sm80::backward::Config config = *sm80::backward_config(problem, shape);
                           return fmt::format("{}x{}, {}, {}", block_n(config), config.block_m,
                                              plural(config.stages, "stage"), plural(config.ctas_per_sm, "CTA"));
                         });
}

/// Whether the page has the table, as a whole.
bool has_table(const char* path, const std::string& table) {
  std::ifstream page(path);
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  if (text.find("\n\n" + table + "\n") != std::string::npos) return true;
  std::printf("%s does not have this table:\n\n%s\n", path, table.c_str());
  return false;
}

}  // namespace
}  // namespace strobe

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  bool good = strobe::has_table(argv[1], strobe::sm90_table());
  good &= strobe::has_table(argv[1], strobe::sm90_option_table());
  for (const auto& table : {strobe::sm80_forward_table(), strobe::sm80_decode_table(), strobe::sm80_backward_table()}) {
    good &= strobe::has_table(argv[2], table);
  }
  return good ? 0 : 1;
}

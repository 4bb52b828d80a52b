#include "hopper/forward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "hopper/schedule.h"
#include "kernels/hopper/forward/smem.h"

namespace strobe::hopper {
namespace {

constexpr int kCompiledHeadDims[] = {32, 64, 96, 128, 192, 256};
constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::unsupported, fmt::format(format, std::forward<Args>(args)...)};
}

Status check_supported(const AttentionProblem& problem) {
  if (problem.dtype != DType::bfloat16 && problem.dtype != DType::float16) {
    return unsupported("q is {}: the hopper engine computes in float16 and bfloat16", strobe::name_of(problem.dtype));
  }
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value % 8 != 0 || value > 256) {
      return unsupported("{} is {}: the hopper engine takes multiples of 8 up to 256", name, value);
    }
  }
  for (const auto& [name, wanted] :
       {std::pair{"bias", problem.modifiers.has_bias}, std::pair{"block_mask", problem.modifiers.block_size != 0},
        std::pair{"dropout", problem.dropout != 0.0F}}) {
    if (wanted) return unsupported("{} is given: the hopper engine does not have it yet, the cpu engine does", name);
  }
  for (const auto& [name, value] : {std::pair{"seqlen_q", problem.seqlen_q}, std::pair{"seqlen_k", problem.seqlen_k},
                                    std::pair{"total_q", problem.total_q}, std::pair{"total_k", problem.total_k},
                                    std::pair{"batch * heads_q", problem.batch * problem.heads_q}}) {
    if (value > kMaxInt / 4) return unsupported("{} is {}: the hopper engine takes up to {}", name, value, kMaxInt / 4);
  }
  return {};
}

int rounded_up(std::int64_t value, std::int64_t divisor) { return static_cast<int>((value + divisor - 1) / divisor); }

std::string_view name_of(Element element) { return element == Element::bf16 ? "bf16" : "fp16"; }

int compiled_head_dim(std::int64_t head_dim) {
  return *std::lower_bound(std::begin(kCompiledHeadDims), std::end(kCompiledHeadDims), static_cast<int>(head_dim));
}

/// Keys that a query of the longest sequence sees at most.
std::int64_t visible_keys(const AttentionProblem& problem, const Band& band) {
  if (!band.bounded_left || !band.bounded_right) return problem.seqlen_k;
  const std::int64_t visible = std::min<std::int64_t>(problem.seqlen_k, std::int64_t{band.left} + band.right + 1);
  return band.chunk > 0 ? std::min<std::int64_t>(visible, band.chunk) : visible;
}

/// Queries of a sequence, on average.
std::int64_t mean_queries(const AttentionProblem& problem) {
  if (!problem.packed_q || problem.batch == 0) return problem.seqlen_q;
  return std::min(problem.seqlen_q, problem.total_q / problem.batch + 1);
}

// The choices below were measured on an H200: docs/performance-log-hopper.md.

/// How many query heads share a tile: as many as a power of two can, if that saves a tenth of the tiles.
int choose_packed_heads(const AttentionProblem& problem) {
  if (problem.heads_k == 0 || problem.heads_q == problem.heads_k) return 1;
  constexpr std::int64_t kRows = 2 * kRowsPerWarpgroup;
  const std::int64_t group = problem.heads_q / problem.heads_k;
  const int packed = static_cast<int>(std::min<std::int64_t>(group & -group, kRowsPerWarpgroup));
  if (problem.seqlen_q > kMaxInt / 4 / packed) return 1;  // rows are counted in 32 bits
  const std::int64_t alone = packed * rounded_up(mean_queries(problem), kRows);
  return 10 * rounded_up(mean_queries(problem) * packed, kRows) <= 9 * alone ? packed : 1;
}

/// Whether the third consumer warpgroup pays at head_dim 128: it hides more latency and wastes more of a tile's rows,
/// and its masked blocks are more.
bool prefers_three_warpgroups(const AttentionProblem& problem, const Band& band) {
  return problem.seqlen_q >= 1024 && visible_keys(problem, band) >= (band.bounded_right ? 8192 : 2048);
}

bool fits(const KernelConfig& config) { return smem_plan(config).total_bytes <= kMaxSmemBytes; }

/// Two warpgroups and as many keys per step as registers and shared memory hold.
void choose_wide_tiles(KernelConfig& config) {
  const int registers = config.max_logits ? 150 : 188;  // of 240, for scores, probabilities and output
  for (const int block_n : {128, 112, 96, 80, 64}) {
    config.block_n = block_n;
    const bool in_registers = block_n / 2 + block_n / 4 + config.head_dim_v / 2 <= registers;
    if (in_registers && fits(config)) break;
  }
}

/// Heads up to 64 wide: exponentials take as long as the GEMMs, and four warps per scheduler keep both units busiest
/// until sequences are long and their blocks all visible.
void choose_narrow_tiles(KernelConfig& config, const AttentionProblem& problem, const Band& band) {
  const bool masked = band.bounded_left || band.bounded_right;
  const bool plain = !masked && !config.varlen && !config.softcap && !config.scale_first;
  config.q_stages = 2;
  if (plain && problem.seqlen_q >= 8192 && problem.seqlen_k >= 8192) {
    config.consumer_warpgroups = 3;
    config.block_n = 128;
    config.stages = 3;
  } else if (config.alibi && config.mask_left) {  // registers for no more
    config.consumer_warpgroups = 3;
    config.block_n = 80;
    config.stages = 4;
  } else {
    config.consumer_warpgroups = 4;
    config.block_n = 64;
    config.stages = 4;
    config.ping_pong = plain;
  }
}

void choose_tiles(KernelConfig& config, const AttentionProblem& problem, const Band& band) {
  const int widest = std::max(config.head_dim, config.head_dim_v);
  config.consumer_warpgroups = 2;
  config.stages = 2;
  config.q_stages = 1;
  if (problem.seqlen_q * config.packed_heads <= kRowsPerWarpgroup) {
    // Reading keys and values is all the time there is: the more of them are on their way, the better.
    config.consumer_warpgroups = 1;
    choose_wide_tiles(config);
    while (config.stages < 4 && fits(config)) ++config.stages;
    if (!fits(config)) --config.stages;
  } else if (widest <= 64 && !config.max_logits) {
    choose_narrow_tiles(config, problem, band);
  } else if (widest <= 128 && prefers_three_warpgroups(problem, band) && !config.alibi && !config.max_logits) {
    config.consumer_warpgroups = 3;
    config.block_n = 80;
    config.q_stages = 2;
  } else {
    choose_wide_tiles(config);
    config.q_stages = 2;
  }
  if (!fits(config)) config.q_stages = 1;
}

/// The variant as C++ names it. Every field is spelled: the text is part of the kernel's name in the store.
std::string expression_of(const KernelConfig& c) {
  return fmt::format(
      "strobe::KernelConfig{{.element = strobe::Element::{}, .head_dim = {}, .head_dim_v = {}, .consumer_warpgroups = "
      "{}, .block_n = {}, .stages = {}, .q_stages = {}, .mask_right = {}, .mask_left = {}, .chunked = {}, .varlen = "
      "{}, "
      ".softcap = {}, .alibi = {}, .sink = {}, .max_logits = {}, .scale_first = {}, .warp_specialized = {}, .ping_pong "
      "= {}, .two_stage "
      "= "
      "{}, .persistent = {}, .cluster = {}, .packed_heads = {}, .listed = {}, .ordered = {}, .debug = {}}}",
      name_of(c.element), c.head_dim, c.head_dim_v, c.consumer_warpgroups, c.block_n, c.stages, c.q_stages,
      c.mask_right, c.mask_left, c.chunked, c.varlen, c.softcap, c.alibi, c.sink, c.max_logits, c.scale_first,
      c.warp_specialized, c.ping_pong, c.two_stage, c.persistent, c.cluster, c.packed_heads, c.listed, c.ordered,
      c.debug);
}

/// Costs are key blocks; a tile's start and end take about as long as one and a half.
std::shared_ptr<const TileList> deal_tiles(const AttentionProblem& problem, const HopperShape& shape,
                                           const HopperForwardPlan& plan) {
  constexpr double kTileOverhead = 1.5;
  const Band band = band_of(problem);
  const std::int64_t rows = std::int64_t{block_m(plan.config)} * plan.config.cluster;
  const std::int64_t diagonal = band.bottom_right ? problem.seqlen_k - problem.seqlen_q : 0;
  const std::int64_t head_bytes =
      std::max<std::int64_t>(1, problem.seqlen_k * (problem.head_dim + problem.head_dim_v) * 2);
  const int packed = plan.config.packed_heads;
  const std::int64_t group = problem.heads_q / problem.heads_k / packed;
  DealtTiles tiles;
  tiles.m_tiles = plan.m_tiles;
  tiles.heads = static_cast<int>(problem.batch * problem.heads_q) / packed;
  // A quarter of L2: the other half of each line's copies is on the far partition, and Q and O pass through too.
  tiles.section_heads = static_cast<int>(
      std::clamp<std::int64_t>(static_cast<std::int64_t>(shape.l2_bytes / 4) / head_bytes * group, 1, tiles.heads));
  tiles.lanes = plan.lanes;
  tiles.cost = [&](int m) {
    const std::int64_t last_row = std::min(((m + 1) * rows - 1) / packed, problem.seqlen_q - 1);
    const std::int64_t keys = std::clamp<std::int64_t>(last_row + diagonal + band.right + 1, 0, problem.seqlen_k);
    return rounded_up(keys, plan.config.block_n) + kTileOverhead;
  };
  return std::make_shared<const TileList>(deal(tiles));
}

}  // namespace

Band band_of(const AttentionProblem& problem) {
  Band band;
  band.bottom_right = problem.causal != CausalMask::top_left;
  const auto bound = [](std::int64_t keys) { return static_cast<int>(std::min(keys, kMaxInt / 4)); };
  band.bounded_left = problem.window.left >= 0;
  if (band.bounded_left) band.left = bound(problem.window.left);
  // The last query of a sequence sees every key, and a single query is the last one.
  const bool last_query = problem.seqlen_q == 1 && !problem.packed_q && !problem.has_seqused_q;
  const bool causal = problem.causal == CausalMask::top_left || (problem.causal != CausalMask::none && !last_query);
  band.bounded_right = problem.window.right >= 0 || causal;
  if (problem.causal == CausalMask::none && band.bounded_right) band.right = bound(problem.window.right);
  if (problem.chunk > 0) {
    band.chunk = bound(problem.chunk);
    if (!band.bounded_left) band.left = bound(kMaxInt);
    if (!band.bounded_right) band.right = bound(kMaxInt);
    band.bounded_left = band.bounded_right = true;
  }
  return band;
}

Result<KernelConfig> hopper_forward_config(const AttentionProblem& problem, const HopperShape& shape) {
  if (Status status = check_supported(problem); !status.ok()) return status;
  const Band band = band_of(problem);
  KernelConfig config;
  config.element = problem.dtype == DType::bfloat16 ? Element::bf16 : Element::fp16;
  config.head_dim = compiled_head_dim(problem.head_dim);
  config.head_dim_v = compiled_head_dim(problem.head_dim_v);
  config.mask_left = band.bounded_left;
  config.mask_right = band.bounded_right;
  config.chunked = band.chunk > 0;
  config.varlen = problem.packed_q || problem.packed_k || problem.has_seqused_q || problem.has_seqused_k;
  config.ordered = config.varlen && problem.batch <= kMaxOrderedSequences;
  config.softcap = problem.softcap > 0.0F;
  config.alibi = problem.modifiers.has_alibi;
  config.sink = problem.modifiers.has_sink;
  config.max_logits = problem.wants_max_logits;
  config.scale_first = config.alibi || (!config.softcap && !(problem.scale > 0.0F));
  config.packed_heads = choose_packed_heads(problem);
  choose_tiles(config, problem, band);
  // With a window on both sides all tiles but a few are as long.
  config.listed = config.mask_right && !config.mask_left && !config.varlen &&
                  shape.multiprocessors <= TileList::kMaxLanes &&
                  rounded_up(problem.seqlen_q * config.packed_heads, block_m(config)) <= TileList::kMaxTiles;
  return config;
}

HopperForwardPlan hopper_forward_plan(const AttentionProblem& problem, const HopperShape& shape,
                                      const KernelConfig& config) {
  HopperForwardPlan plan;
  plan.config = config;
  const std::int64_t sequences = problem.batch + (problem.packed_q ? 1 : 0);  // rows behind the last one are one more
  if (sequences * problem.heads_q == 0 || problem.total_q == 0) return plan;
  plan.m_tiles =
      std::max(1, rounded_up(problem.seqlen_q * config.packed_heads, std::int64_t{block_m(config)} * config.cluster));
  plan.tiles = static_cast<int>(plan.m_tiles * sequences * problem.heads_q / config.packed_heads);
  plan.lanes = config.persistent ? std::min(shape.multiprocessors / config.cluster, plan.tiles) : plan.tiles;
  if (config.listed) plan.list = deal_tiles(problem, shape, plan);
  return plan;
}

Result<HopperForwardPlan> hopper_forward_plan(const AttentionProblem& problem, const HopperShape& shape) {
  const Result<KernelConfig> config = hopper_forward_config(problem, shape);
  if (!config.ok()) return config.status();
  const std::int64_t m_tiles = rounded_up(problem.seqlen_q, std::int64_t{block_m(*config)} * config->cluster);
  if (m_tiles * (problem.batch + 1) * problem.heads_q > kMaxInt) {
    return unsupported("{} tiles of {} query rows: the hopper engine takes up to {}",
                       m_tiles * (problem.batch + 1) * problem.heads_q, block_m(*config), kMaxInt);
  }
  return hopper_forward_plan(problem, shape, *config);
}

runtime::Variant hopper_forward_variant(const KernelConfig& c) {
  return {.name = fmt::format("hopper forward {} d{}{}{}{}{}{}{}{}{}{} {}x{}", name_of(c.element), c.head_dim,
                              c.head_dim_v == c.head_dim ? "" : fmt::format("/{}", c.head_dim_v),
                              c.chunked     ? " chunk"
                              : c.mask_left ? " window"
                                            : "",
                              c.mask_right && !c.mask_left ? " causal" : "", c.varlen ? " varlen" : "",
                              c.softcap ? " softcap" : "", c.alibi ? " alibi" : "", c.sink ? " sink" : "",
                              c.max_logits ? " max" : "",
                              c.packed_heads > 1 ? fmt::format(" group{}", c.packed_heads) : "", block_m(c), c.block_n),
          .include = "kernels/hopper/forward/kernel.h",
          .expression = fmt::format("strobe::hopper::forward<{}>", expression_of(c)),
          .architecture = "sm_90a"};
}

std::string explain(const AttentionProblem& problem, const HopperForwardPlan& plan) {
  const KernelConfig& c = plan.config;
  std::string text = "engine        hopper: the tensors are on a GPU of compute capability 9.0\n";
  text += fmt::format("tiles         {} query rows x {} keys, head_dim {} as {}, head_dim_v {} as {}\n", block_m(c),
                      c.block_n, problem.head_dim, c.head_dim, problem.head_dim_v, c.head_dim_v);
  text += fmt::format("warpgroups    {}{} consumers of 64 rows{}\n", c.warp_specialized ? "1 producer and " : "",
                      c.consumer_warpgroups, c.ping_pong ? ", taking turns on the tensor cores" : "");
  text += fmt::format("pipeline      {} stages of K and V, {} of Q; {}\n", c.stages, c.q_stages,
                      c.two_stage ? "softmax under the P V before" : "one step after another");
  text += fmt::format("shared memory {} of {} bytes\n", smem_plan(c).total_bytes, kMaxSmemBytes);
  if (c.packed_heads > 1) {
    text +=
        fmt::format("heads         {} query heads of a key head share a tile: there are few queries\n", c.packed_heads);
  }
  text += fmt::format("schedule      {}{} tiles on {} {}{}\n", c.ordered ? "at most " : "", plan.tiles, plan.lanes,
                      c.cluster > 1 ? "clusters" : "CTAs",
                      c.listed    ? ", dealt out by length, the longest first"
                      : c.ordered ? ", sequences ordered by length on the device, the longest first"
                                  : "");
  text += "workspace     none\n";
  return text;
}

}  // namespace strobe::hopper

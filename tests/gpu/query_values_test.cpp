// SPDX-License-Identifier: Apache-2.0
// qv on GPUs: scores that are sums of two products, of q with k and of qv with v, against the float64 reference.
#include <utility>
#include <vector>

#include "attention/cache_copy.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "text_cases.h"

namespace strobe::test {
namespace {

class GpuQueryValues : public TextTest {
 protected:
  static AttentionCase with_qv(std::int64_t head_dim, std::int64_t head_dim_v) {
    AttentionCase attention = plain_case(0, head_dim, CausalMask::none);
    attention.head_dim_v = head_dim_v;
    attention.has_qv = true;
    attention.wants_lse = true;
    return attention;
  }

  /// The columns of DeepSeek's absorbed heads, which have one key head.
  static AttentionCase absorbed(std::int64_t heads = 16) {
    AttentionCase attention = with_qv(64, 512);
    attention.heads_q = heads;
    attention.heads_kv = 1;
    return attention;
  }

  void expect_cache_matches(AttentionCase attention, CacheKind kind, std::int64_t page_size,
                            std::pair<std::int64_t, std::int64_t> lengths) {
    attention.q.rows = lengths.first;
    attention.k.rows = lengths.second;
    attention.k.seqused = {static_cast<std::int32_t>(lengths.second), static_cast<std::int32_t>(lengths.second / 3)};
    SCOPED_TRACE(describe(attention));
    SCOPED_TRACE(page_size);
    const TestedVariants variants(true);
    const CaseTensors tensors(attention);
    Random random(1);
    const CacheCopy copy(tensors.forward_arguments(), kind, random, page_size);
    DeviceCache cache(copy.arguments(), device());
    cache.run(attention.options, stream());
    if (!HasFailure()) cache.expect_matches(copy.arguments(), attention.options);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuQueryValues, kFamilies, family_name);

TEST_P(GpuQueryValues, OfEveryWidth) {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{64, 512}, {40, 512}, {64, 256}, {128, 128}, {192, 320}, {8, 64}, {512, 64}}) {
    expect_forward_matches(with_qv(head_dim, head_dim_v), {{70, 200}, {1, 90}});
    if (HasFailure()) return;
  }
}

// On Hopper V's columns are loaded once: where nothing else takes the registers for it.
TEST_P(GpuQueryValues, OfAbsorbedHeads) {
  expect_forward_matches(absorbed(), {{70, 333}, {1, 1500}, {2, 700}});
  AttentionCase attention = absorbed(5);
  attention.options.causal = CausalMask::bottom_right;
  expect_forward_matches(attention, {{140, 200}, {3, 900}});
  attention.dtype = DType::float16;
  attention.q.seqused = {100, 33};
  attention.k.seqused = {150, 0};
  expect_forward_matches(attention, {{130, 150}});
}

TEST_P(GpuQueryValues, OfPackedSequences) {
  AttentionCase attention = absorbed(8);
  attention.batch = 3;
  attention.q.cu_seqlens = {0, 70, 71, 200};
  attention.k.cu_seqlens = {0, 100, 100, 333};
  expect_forward_matches(attention, {{200, 333}});
  attention.options.causal = CausalMask::bottom_right;
  expect_forward_matches(attention, {{200, 333}});
}

TEST_P(GpuQueryValues, InPagesAndEntries) {
  for (const std::int64_t page_size : {1, 16, 64, 100}) {
    expect_cache_matches(absorbed(), CacheKind::pages, page_size, {2, 700});
    expect_cache_matches(absorbed(), CacheKind::pages, page_size, {70, 300});
    expect_cache_matches(with_qv(64, 256), CacheKind::pages, page_size, {70, 300});
    if (HasFailure()) return;
  }
  expect_cache_matches(absorbed(), CacheKind::entries, 0, {2, 700});
  expect_cache_matches(with_qv(64, 256), CacheKind::entries, 0, {70, 300});
}

TEST_P(GpuQueryValues, BesideOptions) {
  AttentionCase attention = absorbed(4);
  attention.options = {.causal = CausalMask::bottom_right, .softcap = 20.0F};
  attention.options.window.left = 90;
  attention.alibi = Alibi::per_head;
  attention.has_sink = true;
  expect_forward_matches(attention, {{100, 150}, {2, 800}});
  attention = absorbed(4);
  attention.bias = BiasCase{.hidden = 0.2, .wants_gradient = false};
  attention.options.dropout = 0.2F;
  expect_forward_matches(attention, {{100, 150}});
  attention = absorbed(4);
  attention.blocks = {.size = 64, .sharing = {.per_batch = true, .per_head = true}, .visible = 0.4};
  expect_forward_matches(attention, {{200, 333}});
}

TEST_P(GpuQueryValues, WithTexts) {
  AttentionCase attention = absorbed(4);
  attention.text = TextCase{"score - 0.01 * abs(q - k)", "(q + k) % 3 != 0", {}};
  expect_forward_matches(attention, {{70, 200}, {2, 900}});
}

TEST_P(GpuQueryValues, RowInvariantCalls) {
  AttentionCase attention = absorbed(4);
  attention.options.row_invariant = true;
  expect_forward_matches(attention, {{70, 200}, {3, 300}});
}

}  // namespace
}  // namespace strobe::test

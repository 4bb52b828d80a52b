// Two queries and two keys of head_dim 1, causal: the first query sees one key, the second sees both.
#include <strobe/attention.h>

#include <cmath>
#include <cstdio>

int main() {
  const float q[] = {1.0F, 1.0F};
  const float k[] = {0.5F, -0.5F};
  const float v[] = {3.0F, 5.0F};
  float o[2] = {};
  const strobe::ForwardArguments arguments{.q = strobe::tensor(q, {1, 2, 1, 1}),
                                           .k = strobe::tensor(k, {1, 2, 1, 1}),
                                           .v = strobe::tensor(v, {1, 2, 1, 1}),
                                           .o = strobe::tensor(o, {1, 2, 1, 1})};
  const strobe::Status status = strobe::forward(arguments, {.causal = strobe::CausalMask::bottom_right});
  std::printf("%s\no = %.6f %.6f\n", status.message().c_str(), o[0], o[1]);

  // softmax(0.5, -0.5) = (1, e^-1) / (1 + e^-1), and o[1] = 3 p_0 + 5 p_1 = 3 + 2 p_1.
  const float expected = 3.0F + 2.0F / (1.0F + std::exp(1.0F));
  return status.ok() && o[0] == 3.0F && std::fabs(o[1] - expected) < 1e-6F ? 0 : 1;
}

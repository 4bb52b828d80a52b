/* The same call through the C interface; softmax(0.5, -0.5) = (1, 1/e) / (1 + 1/e). */
#include <math.h>
#include <stdio.h>
#include <strobe/strobe.h>

static strobe_tensor two_rows(float* data) {
  strobe_tensor view = {.data = data, .rank = 4, .shape = {1, 2, 1, 1}, .strides = {2, 1, 1, 1}};
  return view;
}

int main(void) {
  float q[] = {1.0F, 1.0F};
  float k[] = {0.5F, -0.5F};
  float v[] = {3.0F, 5.0F};
  float o[2] = {0.0F, 0.0F};
  const strobe_forward_arguments arguments = {
      .struct_size = sizeof arguments, .q = two_rows(q), .k = two_rows(k), .v = two_rows(v), .o = two_rows(o)};
  const strobe_options options = {.struct_size = sizeof options, .causal = STROBE_CAUSAL_BOTTOM_RIGHT};
  const strobe_code code = strobe_forward(&arguments, &options, NULL);
  printf("%s\no = %f %f\n", strobe_last_error(), o[0], o[1]);

  const float expected = 3.0F + 2.0F / (1.0F + 2.7182818F);
  return code == STROBE_OK && o[0] == 3.0F && fabsf(o[1] - expected) < 1e-6F ? 0 : 1;
}

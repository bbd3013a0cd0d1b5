// SPDX-License-Identifier: MIT
// The everyday samples as one program, which is compiled once.
#include "features.hip"
#include "clients.hip"
#include "headers.hip"
#include "histogram.hip"
#include "libraries.hip"
#include "matrix_multiply.hip"
#include "prefix_sum.hip"
#include "reduction.hip"
#include "stencil.hip"
#include "transpose.hip"
#include "vector_add.hip"

int main(int num_words, char**) {
  if (num_words > 1) return run_misuse();        // with any word: what reports something
  return run_vector_add() + run_reduction() + run_transpose() + run_matrix_multiply() + run_histogram() +
                 run_prefix_sum() + run_stencil() + run_features() + run_headers() +
                 run_clients() + run_libraries() >
         0;
}

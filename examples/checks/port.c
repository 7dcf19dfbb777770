/* A port in C without any library: `port BUNDLE ACTUAL` reads a bundle of notes-lm and writes the logits of every probe.

   cc -O2 -o port examples/checks/port.c -lm
   transparity check --command "./port {bundle} {actual}" --preset notes-lm */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char name[128];
  int shape[4], dims;
  void *data;
} Tensor;

typedef struct {
  Tensor tensors[512];
  int count;
} File;

static void fail(const char *what, const char *which) {
  fprintf(stderr, "port: %s: %s\n", what, which);
  exit(2);
}

static char *read_file(const char *folder, const char *name, long *size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) fail("cannot be read", path);
  fseek(file, 0, SEEK_END);
  *size = ftell(file);
  rewind(file);
  char *bytes = malloc(*size + 1);
  if (fread(bytes, 1, *size, file) != (size_t)*size) fail("cannot be read", path);
  bytes[*size] = 0;
  fclose(file);
  return bytes;
}

/* A safetensors file: the length of its header, the header as JSON, then the values. */
static void read_tensors(const char *folder, const char *name, File *file) {
  long size;
  char *bytes = read_file(folder, name, &size);
  uint64_t length;
  memcpy(&length, bytes, 8);
  char *data = bytes + 8 + length, *end = data;
  file->count = 0;
  for (char *at = bytes + 8; (at = memchr(at, '"', end - at)); at++) {
    Tensor *tensor = &file->tensors[file->count];
    long begin, stop;
    char kind[8], shape[64];
    int used = 0;
    if (sscanf(at, "\"%127[^\"]\":{\"dtype\":\"%7[^\"]\",\"shape\":[%63[^]]],\"data_offsets\":[%ld,%ld]}%n", tensor->name, kind,
               shape, &begin, &stop, &used) < 5 || !used)
      continue;
    tensor->dims = 0;
    for (char *part = strtok(shape, ","); part; part = strtok(NULL, ",")) tensor->shape[tensor->dims++] = atoi(part);
    tensor->data = data + begin;
    at += used - 1;
    if (++file->count == 512) fail("more than 512 tensors", name);
  }
}

static float *get(const File *file, const char *layer, const char *name) {
  char full[256];
  snprintf(full, sizeof full, "%s%s", layer, name);
  for (int i = 0; i < file->count; i++)
    if (!strcmp(file->tensors[i].name, full)) return file->tensors[i].data;
  fail("there is no parameter", full);
  return NULL;
}

static int field(const char *json, const char *name) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\": ", name);
  const char *at = strstr(json, key);
  if (!at) fail("config.json has no field", name);
  return atoi(at + strlen(key));
}

/* y (rows, out) = x (rows, in) · weightᵀ + bias; with `add`, the right side is added to y. */
static void linear(float *y, const float *x, const float *weight, const float *bias, int rows, int in, int out, int add) {
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      float sum = bias ? bias[o] : 0;
      for (int i = 0; i < in; i++) sum += x[r * in + i] * weight[o * in + i];
      y[r * out + o] = add ? y[r * out + o] + sum : sum;
    }
}

static void layer_norm(float *y, const float *x, const float *weight, const float *bias, int rows, int width) {
  for (int r = 0; r < rows; r++, x += width, y += width) {
    double mean = 0, variance = 0;
    for (int i = 0; i < width; i++) mean += x[i] / width;
    for (int i = 0; i < width; i++) variance += (x[i] - mean) * (x[i] - mean) / width;
    for (int i = 0; i < width; i++) y[i] = (x[i] - mean) / sqrt(variance + 1e-5) * weight[i] + bias[i];
  }
}

/* Document 001 divides by the root of the model's width, not of a head's. */
static void attention(float *context, const float *q, const float *k, const float *v, int length, int width, int heads) {
  int head = width / heads;
  float *weights = malloc(length * sizeof *weights);
  for (int h = 0; h < heads; h++)
    for (int t = 0; t < length; t++) {
      const float *query = q + t * width + h * head;
      float largest = -INFINITY, sum = 0;
      for (int s = 0; s <= t; s++) {
        weights[s] = 0;
        for (int i = 0; i < head; i++) weights[s] += query[i] * k[s * width + h * head + i];
        weights[s] /= sqrtf(width);
        largest = fmaxf(largest, weights[s]);
      }
      for (int s = 0; s <= t; s++) sum += weights[s] = expf(weights[s] - largest);
      for (int i = 0; i < head; i++) {
        float *to = &context[t * width + h * head + i];
        *to = 0;
        for (int s = 0; s <= t; s++) *to += weights[s] / sum * v[s * width + h * head + i];
      }
    }
  free(weights);
}

static void logits_of(float *logits, const int32_t *tokens, int length, const File *p, const char *config) {
  int width = field(config, "embed_dim"), hidden = field(config, "feed_forward_dim"), heads = field(config, "num_heads");
  int vocabulary = field(config, "target_vocab_size"), layers = field(config, "num_decoder_layers"), n = length * width;
  float *room = malloc((6 * n + length * hidden) * sizeof *room);
  float *x = room, *y = x + n, *q = y + n, *k = q + n, *v = k + n, *context = v + n, *up = context + n;
  const float *table = get(p, "decoder.", "token_embedding.weight"), *places = get(p, "decoder.", "position_embedding.weight");
  for (int i = 0; i < n; i++) x[i] = table[tokens[i / width] * width + i % width] + places[i];
  for (int i = 0; i < layers; i++) {
    char at[64];
    snprintf(at, sizeof at, "decoder.layers.%d.", i);
    layer_norm(y, x, get(p, at, "self_attention_norm.weight"), get(p, at, "self_attention_norm.bias"), length, width);
    linear(q, y, get(p, at, "self_attention.query.weight"), NULL, length, width, width, 0);
    linear(k, y, get(p, at, "self_attention.key.weight"), NULL, length, width, width, 0);
    linear(v, y, get(p, at, "self_attention.value.weight"), NULL, length, width, width, 0);
    attention(context, q, k, v, length, width, heads);
    linear(x, context, get(p, at, "self_attention.output.weight"), get(p, at, "self_attention.output.bias"), length, width, width, 1);
    layer_norm(y, x, get(p, at, "feed_forward_norm.weight"), get(p, at, "feed_forward_norm.bias"), length, width);
    linear(up, y, get(p, at, "feed_forward.up.weight"), get(p, at, "feed_forward.up.bias"), length, width, hidden, 0);
    for (int j = 0; j < length * hidden; j++) up[j] = fmaxf(up[j], 0);
    linear(x, up, get(p, at, "feed_forward.down.weight"), get(p, at, "feed_forward.down.bias"), length, hidden, width, 1);
  }
  layer_norm(y, x, get(p, "decoder.", "final_norm.weight"), get(p, "decoder.", "final_norm.bias"), length, width);
  linear(logits, y, get(p, "", "head.weight"), get(p, "", "head.bias"), length, width, vocabulary, 0);
  free(room);
}

int main(int count, char **arguments) {
  static File parameters, inputs;
  if (count != 3) fail("usage", "port BUNDLE ACTUAL");
  long size, begin = 0;
  const char *config = read_file(arguments[1], "config.json", &size);
  int vocabulary = field(config, "target_vocab_size");
  read_tensors(arguments[1], "parameters.safetensors", &parameters);
  read_tensors(arguments[1], "inputs.safetensors", &inputs);
  static char header[1 << 16] = "{";
  static float *answers[512];
  for (int i = 0; i < inputs.count; i++) {
    Tensor *tokens = &inputs.tensors[i];
    int rows = tokens->shape[0], length = tokens->shape[1], row = length * vocabulary;
    answers[i] = malloc(rows * row * sizeof(float));
    for (int r = 0; r < rows; r++)
      logits_of(answers[i] + r * row, (int32_t *)tokens->data + r * length, length, &parameters, config);
    *strchr(tokens->name, '/') = 0; /* probe/tokens */
    long end = begin + rows * row * (long)sizeof(float);
    sprintf(header + strlen(header), "%s\"%s/logits\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],\"data_offsets\":[%ld,%ld]}",
            i ? "," : "", tokens->name, rows, length, vocabulary, begin, end);
    begin = end;
  }
  strcat(header, "}");
  FILE *actual = fopen(arguments[2], "wb");
  if (!actual) fail("cannot be written", arguments[2]);
  uint64_t length = strlen(header);
  fwrite(&length, 8, 1, actual);
  fwrite(header, 1, length, actual);
  for (int i = 0; i < inputs.count; i++)
    fwrite(answers[i], sizeof(float), (size_t)inputs.tensors[i].shape[0] * inputs.tensors[i].shape[1] * vocabulary, actual);
  return fclose(actual);
}

/* Acts with an exported policy through onnxruntime's C interface: one that observes a vector of float32 and chooses one of
   several actions, with any states, whose names and shapes are the file's.

   cc act.c -I <headers of onnxruntime> -L <its library> -lonnxruntime -o act && ./act policy.onnx */

#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 32 /* inputs or outputs, and dimensions of one */
static const OrtApi *api;

static void check(OrtStatus *status) {
    if (status) exit((fprintf(stderr, "%s\n", api->GetErrorMessage(status)), 1));
}

static void *data_of(OrtValue *value) {
    void *data;
    check(api->GetTensorMutableData(value, &data));
    return data;
}

/* Zeros for an input of one environment. */
static OrtValue *zeros(OrtSession *session, size_t input, OrtMemoryInfo *memory) {
    OrtTypeInfo *info;
    const OrtTensorTypeAndShapeInfo *tensor;
    enum ONNXTensorElementDataType type;
    size_t dims, size = 8; /* bytes: no type is larger */
    int64_t shape[MOST];
    OrtValue *value;
    check(api->SessionGetInputTypeInfo(session, input, &info));
    check(api->CastTypeInfoToTensorInfo(info, &tensor));
    check(api->GetTensorElementType(tensor, &type));
    check(api->GetDimensionsCount(tensor, &dims));
    check(api->GetDimensions(tensor, shape, dims));
    shape[0] = 1; /* the batch */
    for (size_t i = 0; i < dims; i++) size *= shape[i];
    check(api->CreateTensorWithDataAsOrtValue(memory, calloc(size, 1), size, shape, dims, type, &value));
    return value;
}

int main(int argc, char **argv) {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtAllocator *allocator;
    OrtMemoryInfo *memory;
    OrtValue *given[MOST];
    char *inputs[MOST], *outputs[MOST];
    size_t ins, outs;
    int steps = argc > 2 ? atoi(argv[2]) : 5;
    if (argc < 2) return fprintf(stderr, "usage: act policy.onnx [steps]\n"), 1;
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!api) return fprintf(stderr, "The library of onnxruntime is older than its headers.\n"), 1;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "act", &env));
    check(api->CreateSessionOptions(&options));
    check(api->CreateSession(env, argv[1], options, &session));
    check(api->GetAllocatorWithDefaultOptions(&allocator));
    check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    check(api->SessionGetInputCount(session, &ins));
    check(api->SessionGetOutputCount(session, &outs));
    if (ins > MOST || outs > MOST) return fprintf(stderr, "more than %d inputs or outputs\n", MOST), 1;
    for (size_t o = 0; o < outs; o++) check(api->SessionGetOutputName(session, o, allocator, &outputs[o]));
    for (size_t i = 0; i < ins; i++) {
        check(api->SessionGetInputName(session, i, allocator, &inputs[i]));
        given[i] = zeros(session, i, memory);
    }
    for (int step = 0; step < steps; step++) {
        OrtValue *found[MOST] = {0};
        for (size_t i = 0; i < ins; i++) {
            if (!strcmp(inputs[i], "is_init")) *(char *)data_of(given[i]) = step == 0; /* an episode begins */
            if (!strcmp(inputs[i], "observation")) *(float *)data_of(given[i]) = 0.1f * step; /* your sensors */
        }
        check(api->Run(session, NULL, (const char *const *)inputs, (const OrtValue *const *)given, ins,
                       (const char *const *)outputs, outs, found));
        for (size_t o = 0; o < outs; o++) {
            if (!strcmp(outputs[o], "action")) printf("%lld\n", (long long)*(int64_t *)data_of(found[o]));
            for (size_t i = 0; i < ins; i++) { /* each new state is an input of the next step */
                if (strncmp(outputs[o], "next.", 5) || strcmp(outputs[o] + 5, inputs[i])) continue;
                api->ReleaseValue(given[i]);
                given[i] = found[o], found[o] = NULL;
            }
            api->ReleaseValue(found[o]);
        }
    }
    return 0;
}

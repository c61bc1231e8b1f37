// Calls through pointers: a table of functions, a virtual method, a function given as an argument; recursion.
typedef float (*Unary)(float, int);

__device__ __noinline__ float twice(float x, int) { return x + x; }
__device__ __noinline__ float plus(float x, int n) { return x + n; }
__device__ __noinline__ float square(float x, int) { return x * x; }

__device__ Unary table[3] = {twice, plus, square};

struct Shape {
    __device__ virtual float area(float x) const = 0;
};
struct Square : Shape {
    __device__ float area(float x) const override { return x * x; }
};
struct Strip : Shape {
    float width;
    __device__ explicit Strip(float w) : width(w) {}
    __device__ float area(float x) const override { return x * width; }
};

__device__ __noinline__ float apply(Unary f, float x, int n) { return f(x, n) + 1.0f; }

extern "C" __global__ void by_table(float* out, const int* which, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[which[i]](i, n);
}

extern "C" __global__ void by_argument(float* out, int pick, int n) {
    int i = threadIdx.x;
    Unary f = pick == 0 ? twice : pick == 1 ? plus : square;
    if (i < n) out[i] = apply(f, i, n);
}

extern "C" __global__ void by_virtual(float* out, int n) {
    int i = threadIdx.x;
    Square square;
    Strip strip(n);
    const Shape* shape = i % 3 == 0 ? (const Shape*)&square : (const Shape*)&strip;
    out[i] = shape->area(i);
}

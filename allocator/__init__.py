"""The CUDA caching allocator as a pure state machine; replay of a recorded trace; what-if."""

/* What 32-bit programs find where the limiter is for 64-bit ones: a library of
 * their class with nothing in it. Without it the loader says on the stderr of
 * each of them that it can't preload the limiter. There is no 32-bit CUDA. */
extern const int hv_nothing;

const int hv_nothing = 0;

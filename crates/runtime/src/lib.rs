//! Everything that touches memory, threads and drivers; with `python` the only home of `unsafe`.

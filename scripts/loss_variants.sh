# Every variant of the losses' kernels on a machine of two GPUs, in five minutes. OUT is where the results go.
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4 PYTHONPATH=$PWD:$PWD/scripts:$PYTHONPATH TRITON_CACHE_DIR=/tmp/triton_variants
python=${PYTHON:-python3}
tests() { CUDA_VISIBLE_DEVICES=1 timeout "$1" $python -m pytest -q --maxfail 6 -p no:cacheprovider "${@:2}"; }
(
    CUDA_VISIBLE_DEVICES=0 timeout 225 $python scripts/loss_variants.py logits --out $OUT/logits.json >$OUT/logits.log 2>&1
) &
(
    tests 95 tests/gpu/test_tokens_gpu.py tests/gpu/test_kernels_gpu.py >$OUT/tests.log 2>&1
    CUDA_VISIBLE_DEVICES=1 timeout 125 $python scripts/loss_variants.py rest --out $OUT/rest.json >$OUT/rest.log 2>&1
) &
wait
timeout 45 $python -m pytest -q -p no:cacheprovider tests/gpu/test_vocab_parallel_gpu.py >$OUT/parallel.log 2>&1
timeout 50 $python -m torch.distributed.run --nproc-per-node 2 scripts/bench_parallel.py --out $OUT/parallel.json >>$OUT/parallel.log 2>&1
for log in tests logits rest parallel; do
    echo "== $log"
    grep -v Warning $OUT/$log.log | cut -c1-260 | tail -n 75
done

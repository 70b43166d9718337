"""What back-propagation starts from: softmax over the outputs of several samples at once."""

from math import factorial, log

from llvmlite import ir

from fedcore.engine.kernels.routine import Number, Word, routine
from fedcore.engine.kernels.simd import Emitter, Matrix
from fedcore.engine.kernels.values import Value, Variable


@routine
def softmax(emit: Emitter, factor: Number, outputs: Matrix, rows: Word, count: Word) -> None:
    """Column b < count of `outputs` becomes `factor` times its softmax over `rows` outputs; one that is no number stays visible."""
    with emit.loop(emit.registers(count)) as r:
        first = emit.after(outputs.address, r * emit.lanes)
        column = Matrix(first, outputs.stride)
        top, total = Variable(emit.load(first)), Variable(emit.constant(0.0))
        with emit.loop(rows) as o:
            value, highest = emit.load(emit.row(column, o)), top.value
            top.value = (value > highest).select(value, highest)
        highest = top.value
        with emit.loop(rows) as o:
            value = exponential(emit, emit.load(emit.row(column, o)) - highest)
            total.value = total.value + value
            emit.store(value, emit.row(column, o))
        scale = emit.splat(factor) / total.value
        with emit.loop(rows) as o:
            emit.store(scale * emit.load(emit.row(column, o)), emit.row(column, o))


def exponential(emit: Emitter, x: Value) -> Value:
    """e^x for x <= 0, to rounding; 0 where it is below all normal numbers, and not-a-number of itself.

    x = k ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor series, as long as its terms count; 2^k by setting the exponent's bits.
    """
    single = emit.bytes == 4
    bits, bias, terms, lowest = (23, 127, 8, -87.0) if single else (52, 1023, 14, -708.0)
    # ln 2 in two parts, the first so short that its product with k is exact.
    coarse, fine = (0.693359375, -2.12194440054690583e-4) if single else (0.693147180369123816490, 1.90821492927058770002e-10)
    # Adding 1.5 2^bits rounds to a whole number, which the low bits then hold.
    shift = emit.constant(1.5 * 2.0**bits)
    held = (x < lowest).select(lowest, x)
    shifted = emit.fma(held, emit.constant(1 / log(2)), shift)
    k = shifted - shift
    r = emit.fma(k, emit.constant(-fine), emit.fma(k, emit.constant(-coarse), held))
    power = emit.constant(1 / factorial(terms - 1))
    for term in reversed(range(terms - 1)):
        power = emit.fma(power, r, emit.constant(1 / factorial(term)))
    exponent = shifted.cast(ir.VectorType(ir.IntType(8 * emit.bytes), emit.lanes)) + bias
    return (x < lowest).select(0.0, power * (exponent << bits).cast(emit.vector))

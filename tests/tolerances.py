"""Every tolerance of the tests, in bf16 steps, with its reason."""

EXACT = 0
# one rounding after an f32 sum whose order differs: the sum can fall on the other side of a rounding boundary
ONE_ROUNDING = 1
# a bf16 value one step off goes through a norm or a rotation and is rounded again
TWO_ROUNDINGS = 2

"""The number formats, one file each: the bit picture, encode and decode on the host and in kernels.

Host functions take arrays and are named `x_to_y`; kernel functions take one number and are named `decode_x`,
`encode_x`. The two are written apart on purpose: each is the other's check.
"""

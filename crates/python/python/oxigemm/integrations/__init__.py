"""Other people's packages on these kernels. Each module here imports the package that it is named for."""

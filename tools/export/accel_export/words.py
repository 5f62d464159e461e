"""What an option is called where the user gives it: a flag of the program, or an argument of the Python API."""


class Flags:
    """Those of the program accel-export."""

    overwrite = "--overwrite"
    accel = "--accel PROGRAM"
    no_check = "--no-check"
    weights = "--weights"
    float32 = "--dtype float32"
    outputs = "--outputs"
    accept = "--accept FILE:LINE"
    layers = "--layers"
    compile = "--compile"
    some_layers, no_layers = "--layers CLASS,CLASS", "--layers none"
    sizes = "other sizes with --length and --batch"

    @staticmethod
    def one_size(dimension):
        return "--batch N" if dimension == "batch" else "--length N"

    @staticmethod
    def value(key, value):
        return f"in config.json, or with --set {key}={value}"


class Arguments:
    """Those of accel_export.export."""

    overwrite = "overwrite=True"
    accel = "accel=PROGRAM"
    no_check = "check=False"
    weights = "weights=True"
    float32 = "dtype=torch.float32"
    outputs = "outputs"
    accept = 'accept=["FILE:LINE"]'
    layers = "layers"
    compile = "compile=True"
    some_layers, no_layers = 'layers=["CLASS"]', "layers=[]"
    sizes = "example_inputs of other sizes"

    @staticmethod
    def one_size(dimension):
        return f'lengths=["{dimension}"]'

    @staticmethod
    def value(key, value):
        return f"in the model's config: config.{key} = {value.title() if value == 'false' else value}"

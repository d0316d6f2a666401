"""placeholder"""
def check(backend: object) -> str:
    return "unverified"

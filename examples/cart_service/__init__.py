"""A FastAPI service that embeds a worker and serves carts as entities.

pip install 'harvest-engine[embedded,server]'
STAFF_PASSWORD=… python -m examples.cart_service   # an embedded Postgres, http://127.0.0.1:8000/docs, /ops for the staff
"""

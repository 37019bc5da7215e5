-- The newest payment of each account.
select key as account, value.amount as amount, value.paid_at as paid_at
from {{ source('silver', 'payments_latest') }}
where not deleted

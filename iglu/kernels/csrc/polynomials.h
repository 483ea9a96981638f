/* The polynomials of formulas.h, written by tools/polynomials.py: do not edit.
 *
 * With z = min(u^2, 1/u^2), m = sqrt(z), a = |u|:
 *   excess      (arctan(m)/m - 1)/z, in z
 *   far_df_dx   (arctan(m)/m - 1/(1+z))/(pi z), in z - center (half: in z)
 *   near_df_dx  1/2 - (arctan(a) + a/(1+a^2))/pi, in a - center, for a < 1
 *   tail        1/2 - arctan(a)/pi, a rational function of pi a, for every a; nothing cancels
 * Included once per instruction set. */

#define POLYNOMIAL(real, name, first, terms) IGLU_INLINE real name(real x) { real p = first; terms return p; }
#define TERM(coefficient) p = MADD(p, x, coefficient);

/* error 2^-28.5 */
POLYNOMIAL(float, excess_f32, -0x1.d5979cp-10f,
    TERM(0x1.654c34p-7f) TERM(-0x1.fe779ap-6f) TERM(0x1.da991cp-5f) TERM(-0x1.5824e2p-4f) TERM(0x1.c093f4p-4f)
    TERM(-0x1.24210ap-3f) TERM(0x1.9991eap-3f) TERM(-0x1.55553ep-2f))

/* error 2^-57.5 */
POLYNOMIAL(double, excess_f64, 0x1.bb8d97b49ea77p-17,
    TERM(-0x1.3ef9bcb7e95b2p-13) TERM(0x1.b3b4193d897cp-11) TERM(-0x1.7a06f1e925b86p-9)
    TERM(0x1.d7874c615257fp-8) TERM(-0x1.c76c17844155ap-7) TERM(0x1.682989f9e2d6p-6)
    TERM(-0x1.e9ea20f68102ep-6) TERM(0x1.2c2940dbea5d2p-5) TERM(-0x1.59a171c981ddfp-5)
    TERM(0x1.82d9da16212e1p-5) TERM(-0x1.ae5e26f96203p-5) TERM(0x1.e1bb953e1cce9p-5)
    TERM(-0x1.110e4fb63ef31p-4) TERM(0x1.3b13666e3336ap-4) TERM(-0x1.745d11aaf5a0bp-4)
    TERM(0x1.c71c717fa4f65p-4) TERM(-0x1.249249237edd2p-3) TERM(0x1.99999999955aap-3)
    TERM(-0x1.5555555555526p-2))

/* error 2^-26.3 */
#define FAR_DF_DX_CENTER_f32 0x1.fdf50ep-2f
POLYNOMIAL(float, far_df_dx_f32, 0x1.35093ap-8f,
    TERM(-0x1.d742cp-8f) TERM(0x1.ea05fp-8f) TERM(-0x1.689e12p-7f) TERM(0x1.182586p-6f) TERM(-0x1.9decp-6f)
    TERM(0x1.2f427ep-5f) TERM(-0x1.b97f26p-5f) TERM(0x1.3c291p-4f) TERM(-0x1.b43e8ap-4f) TERM(0x1.0a1654p-3f))

/* error 2^-56.5 */
#define FAR_DF_DX_CENTER_f64 0x1.fdf3b645a1bbap-2
POLYNOMIAL(double, far_df_dx_f64, 0x1.bf16ac63e7802p-15,
    TERM(-0x1.5b1de46e73436p-14) TERM(0x1.8bc5adb967d2fp-15) TERM(-0x1.172b182462d8ep-14)
    TERM(0x1.3524c4eab4194p-13) TERM(-0x1.d2ef6c144c92dp-13) TERM(0x1.4b0def7f6c01cp-12)
    TERM(-0x1.ede9b0ebf63a9p-12) TERM(0x1.72e63e5316b81p-11) TERM(-0x1.14f34858d2a19p-10)
    TERM(0x1.9d3347d89916dp-10) TERM(-0x1.342b0002a12fcp-9) TERM(0x1.cb57c4a287346p-9)
    TERM(-0x1.56035bb4f173ep-8) TERM(0x1.fcadcf97801c1p-8) TERM(-0x1.79a746b6932f3p-7)
    TERM(0x1.17ba345659f28p-6) TERM(-0x1.9cfc55c5a145cp-6) TERM(0x1.2f455c808d656p-5)
    TERM(-0x1.b98619618823p-5) TERM(0x1.3c29ef6154748p-4) TERM(-0x1.b43f55fb69c28p-4)
    TERM(0x1.0a169d36d2a68p-3))

/* error 2^-27.0 */
#define NEAR_DF_DX_CENTER_f32 0x1.75407p-1f
POLYNOMIAL(float, near_df_dx_f32, 0x1.edc9dap-6f,
    TERM(0x1.abfde4p-4f) TERM(0x1.09a0dp-4f) TERM(-0x1.7d77b2p-5f) TERM(0x1.92c5fcp-6f) TERM(0x1.d56eap-7f)
    TERM(-0x1.3997fap-4f) TERM(0x1.7de7c8p-4f) TERM(-0x1.35a0d4p-6f) TERM(-0x1.05e1eap-3f)
    TERM(0x1.08a03cp-2f) TERM(-0x1.15f452p-2f) TERM(0x1.2f07c8p-3f))

/* error 2^-57.2 */
#define NEAR_DF_DX_CENTER_f64 0x1.753f7ced916f3p-1
POLYNOMIAL(double, near_df_dx_f64, -0x1.5a6526f93529ap-8,
    TERM(-0x1.05f8e4dc705e9p-5) TERM(-0x1.36848d2fc8991p-4) TERM(-0x1.5dd57380cfe66p-4)
    TERM(-0x1.564906a8a664ep-5) TERM(-0x1.f0e770cd81837p-10) TERM(0x1.4b152eba25f12p-7)
    TERM(0x1.5af48fe130326p-7) TERM(-0x1.de533cef0abecp-9) TERM(-0x1.9aeb9acd67427p-9)
    TERM(0x1.1111c0475081p-7) TERM(-0x1.2c21b502a94f3p-7) TERM(0x1.856fdfb6ad01ap-12)
    TERM(0x1.c2848d6dd6dbap-7) TERM(-0x1.54c7096b421dcp-6) TERM(0x1.339ba8790130cp-7)
    TERM(0x1.2e29b2f74720cp-6) TERM(-0x1.584f1e52e3363p-5) TERM(0x1.14c82c08f4cbep-5)
    TERM(0x1.fd1b29c4132b4p-7) TERM(-0x1.3c02192669a38p-4) TERM(0x1.7d721f2e312a8p-4)
    TERM(-0x1.356dc535f2a7p-6) TERM(-0x1.05dffd47c7a38p-3) TERM(0x1.08a0ec83978bap-2)
    TERM(-0x1.15f54ea831407p-2) TERM(0x1.2f08cfec40e09p-3))

/* error 2^-21.3 */
POLYNOMIAL(float, far_df_dx_half, 0x1.43f5p-7f,
    TERM(-0x1.bdae68p-5f) TERM(0x1.1a0b36p-3f) TERM(-0x1.c4b6d6p-3f) TERM(0x1.122dacp-2f)
    TERM(-0x1.1dce92p-2f) TERM(0x1.1705b6p-2f) TERM(-0x1.04bf06p-2f) TERM(0x1.b29954p-3f))

/* error 2^-20.6 */
#define NEAR_DF_DX_CENTER_half 0x1.75407p-1f
POLYNOMIAL(float, near_df_dx_half, 0x1.cdf41ap-6f,
    TERM(0x1.daf83cp-4f) TERM(0x1.f6715ap-6f) TERM(-0x1.68da74p-4f) TERM(0x1.6ffb7p-4f) TERM(-0x1.2d4774p-6f)
    TERM(-0x1.058d9ap-3f) TERM(0x1.089dbp-2f) TERM(-0x1.15f4cap-2f) TERM(0x1.2f07cep-3f))

/* error 2^-20.9 */
POLYNOMIAL(float, tail_numerator_half, x + 0x1.d042e4p+2f,
    TERM(0x1.de57ccp+4f) TERM(0x1.2aa68p+6f) TERM(0x1.af319cp+6f))
POLYNOMIAL(float, tail_denominator_half, x + 0x1.d04554p+2f,
    TERM(0x1.09642cp+5f) TERM(0x1.8b79p+6f) TERM(0x1.820ap+7f) TERM(0x1.af318ep+7f))
